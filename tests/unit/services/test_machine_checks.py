from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from synthetic import load_run

from gpuledger.cards.card import BareCard, CardQuantity, MemoryReading, Processes, SensorReading
from gpuledger.cards.nvidia import NVIDIA
from gpuledger.cards.opening import OpenCards
from gpuledger.cards.vendor import CardList
from gpuledger.cli.main import main
from gpuledger.services import machine_checks
from gpuledger.services.machine_checks import MachineCheck, driver_checks, selftest_check, torch_checks
from gpuledger.services.selftest import compare, run_selftest


class H200(BareCard):
    """A GPU that tells what doctor asks for."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(0, "NVIDIA H200", "GPU-1", driver_version="580.159")
        self._answers = answers

    def read_memory(self) -> MemoryReading | None:
        return self._answers.get("memory", MemoryReading(618 << 20, 615 << 20, 143_771 << 20))

    def read_sensors(self) -> SensorReading:
        return SensorReading(power_average_w=90.0)

    def read_processes(self) -> Processes | None:
        return self._answers.get("processes", [])

    def read_energy_mj(self) -> int | None:
        return self._answers.get("energy", 7)


WITH_CARD = OpenCards({"NVIDIA": CardList([H200()], "580.159")})
WITHOUT = OpenCards({}, {"NVIDIA": "NVML Shared Library Not Found"})


def answer(**changes: Any) -> dict[str, Any]:
    return {
        "torch_version": "2.13.0",
        "cuda_build": "13.0",
        "device_count": 1,
        "lost": {},
        "no_history": None,
    } | changes


def statuses(checks: list[MachineCheck]) -> list[str]:
    return [check.status for check in checks]


@pytest.mark.torch
def test_selftest_finds_every_byte_on_the_cpu(tmp_path: Path) -> None:
    found = run_selftest("cpu", tmp_path)
    assert found.missing == ()
    assert found.found_bytes == found.made_bytes == sum((64_000, 37_000, 37_000, 37, 37, 1)) * 4


@pytest.mark.torch
def test_doctor_ends_with_the_selftest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('a file of the user was imported')")
    result = CliRunner().invoke(main, ["doctor", "--json"])
    document = json.loads(result.stdout)
    assert document["checks"][-1]["name"].startswith("test ")
    assert result.exit_code == (0 if document["ok"] else 1)
    assert all(check["status"] in ("ok", "none", "fail") for check in document["checks"])
    assert [path.name for path in tmp_path.iterdir()] == ["json.py"]


def test_what_the_recording_lacks_is_named(tmp_path: Path) -> None:
    run = load_run(tmp_path / "one.ledger", blocks=50, cuda=False)
    row = next(row for row in run.table("blocks").to_pylist() if row["free_requested_index"] is None)
    there = (row["address"], row["requested_bytes"])
    found = compare("cpu", {"kept": there, "lost": (1, 100), "grown": (there[0], there[1] + 1)}, run)
    assert found.missing == ("lost", "grown")
    assert (found.found_bytes, found.made_bytes) == (there[1], 2 * there[1] + 101)
    check = selftest_check({**vars(found)})
    assert check.status == "fail"
    assert "lost, grown" in check.found


def test_a_device_that_breaks_is_a_finding() -> None:
    broken = {"device": "cuda:0", "error": "RuntimeError: CUDA error", "missing": []}
    assert selftest_check(broken).status == "fail"


@pytest.mark.parametrize(
    ("said", "there", "status", "words"),
    [
        (answer(), WITH_CARD, "ok", "for CUDA 13.0, sees 1 GPU"),
        (answer(torch_version="2.13.0+cpu", cuda_build=None, device_count=0), WITHOUT, "ok", "CPU tensors"),
        (answer(torch_version="2.13.0+cpu", cuda_build=None, device_count=0), WITH_CARD, "fail", "without CUDA"),
        (answer(device_count=0), WITH_CARD, "fail", "sees 0 GPUs"),
        (answer(device_count=0), WITHOUT, "ok", "sees 0 GPUs"),
        (answer(torch_version="2.10.1"), WITH_CARD, "fail", "needs 2.11"),
        (
            {"torch_version": None, "import_error": "no module torch"},
            WITHOUT,
            "fail",
            "no module torch",
        ),
        ({"error": "the self-test exited with status -11: no output"}, WITH_CARD, "fail", "status -11"),
    ],
)
def test_torch_is_judged_with_the_driver(said: dict[str, Any], there: OpenCards, status: str, words: str) -> None:
    (check,) = torch_checks(said, len(there.numbers))
    assert check.status == status
    assert words in check.found
    assert bool(check.todo) == (status == "fail")


def test_what_torch_lacks_is_told_with_its_consequence() -> None:
    lost = {"_cuda_setMemoryMetadata": "CUDA allocations carry no module"}
    checks = list(torch_checks(answer(lost=lost, no_history="caching is off"), 1))
    assert statuses(checks) == ["ok", "none", "none"]
    assert "caching is off" in checks[1].found
    assert "_cuda_setMemoryMetadata" in checks[2].found


def test_a_card_without_a_driver_is_in_the_way(tmp_path: Path) -> None:
    assert statuses(list(driver_checks(NVIDIA, WITHOUT, tmp_path))) == ["none"]
    (tmp_path / "nvidia0").touch()
    assert statuses(list(driver_checks(NVIDIA, WITHOUT, tmp_path))) == ["fail"]
    assert statuses(list(driver_checks(NVIDIA, WITH_CARD, tmp_path))) == ["ok"]


def test_a_card_tells_what_it_holds_and_what_may_not_be_read() -> None:
    assert (
        machine_checks.card_check(H200()).found
        == "NVIDIA H200, 140.4 GiB, 618.0 MiB in use + 615.0 MiB reserved by the driver"
    )
    denied = H200(memory=None)
    denied.reasons[CardQuantity.MEMORY] = "Insufficient Permissions"
    check = machine_checks.card_check(denied)
    assert (check.status, check.found) == ("fail", "NVIDIA H200: memory: Insufficient Permissions")
    hidden = machine_checks.card_check(H200(processes=None, energy=None))
    assert hidden.status == "ok"
    untold = "not reported by this GPU's driver"
    assert hidden.found.endswith(f"; not readable: processes: {untold}; energy: {untold}")


def test_a_directory_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert machine_checks.directory(tmp_path).status == "ok"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert machine_checks.directory(tmp_path).status == "fail"


def test_the_verdict_names_what_is_in_the_way() -> None:
    good, bad = MachineCheck("test cpu", "ok", "x"), MachineCheck("driver", "fail", "x")
    assert machine_checks.verdict([good]) == "ready to record on cpu; next: gpuledger run train.py"
    assert machine_checks.verdict([good, bad]) == "fix before recording: driver"
