"""A vendor that another package registers: watch, doctor, the calibration and the balance read its GPU as NVIDIA's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import toy_vendor
from folders import RECORDINGS
from programs import Ended, environment, execute
from quick import quick_gpuledger
from stubbed import measured_well
from toy_vendor import COUNTER, GIB, HELD_BYTES, MIB, WATTS

from gpuledger.cards import opening
from gpuledger.collect.memory.device_readings import CardReader
from gpuledger.model.journal.journal import JournalWriter, Part, write_plain
from gpuledger.model.journal.reading import Journal, read_journal
from gpuledger.model.run import Run, read_run
from gpuledger.model.run_directory import write_json

pytestmark = pytest.mark.torch

PIECES = """
import sys
if "gpuledger.collect.sampling.calibrate" in sys.orig_argv:
    import contextlib, torch, toy_vendor
    from types import SimpleNamespace
    from gpuledger.collect.sampling import calibrate_card
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_properties = lambda index: SimpleNamespace(name="Toy", uuid="toy-0")
    torch.cuda.device = contextlib.nullcontext
    torch.cuda.synchronize = lambda: None
    torch.cuda.memory_reserved = lambda index: 4 << 20
    def grow(size):
        toy_vendor.ToyCard.held_bytes = size
    calibrate_card.pieces = lambda: [
        ("context", False, lambda: grow(304 << 20)), ("backward pass", True, lambda: grow(354 << 20))
    ]
"""
"""What stands for torch on the toy in the process that measures: a context of 300 MiB, and a library of 50 MiB."""


def gpuledger(directory: Path, *words: str, **settings: str) -> Ended:
    """Return how a command ended on the machine with the toy."""
    installed = toy_vendor.install(directory / "site") if not (directory / "site").exists() else {}
    path = {"PYTHONPATH": f"{directory / 'site'}:{Path(toy_vendor.__file__).parent}", **installed}
    place = environment(**path, XDG_CACHE_HOME=str(directory / "cache"), **settings)
    return execute([*quick_gpuledger(), *words], directory, place)


def watch_in(directory: Path, pause_s: float) -> Run:
    """Return the watch of a command that uses the GPU from its middle on."""
    busy = directory / "busy"
    busy.unlink(missing_ok=True)
    program = f"import time; time.sleep({pause_s}); open('busy', 'w').close(); time.sleep({pause_s})"
    words = ("watch", "--out", "w", "--force", "--", sys.executable, "-c", program)
    ended = gpuledger(directory, *words, TOY_BUSY=str(busy))
    assert (ended.status, ended.stdout) == (0, b""), ended.stderr
    return read_run(directory / "w.ledger")


def test_watch_reads_it_from_a_process_of_its_own(tmp_path: Path) -> None:
    run = measured_well(
        lambda pause_s: watch_in(tmp_path, pause_s),
        lambda run: all(row["energy_j"] is not None for row in run.rank().table("windows").to_pylist()),
    )
    assert [one.to_json() for one in run.rank().manifest.devices] == [
        {
            "device_idx": 0,
            "name": "Toy",
            "uuid": "GPU-toy-0",
            "total_bytes": 140 * GIB,
            "driver_version": "1.0",
            "energy_counter": True,
        }
    ]
    used = run.rank().table("samples").column("used_bytes").to_pylist()
    assert set(used) == {2 * GIB, 3 * GIB}
    (window,) = run.rank().table("windows").to_pylist()
    length_ns = window["end_ns"] - window["start_ns"]
    assert window["energy_j"] == pytest.approx(WATTS * length_ns / 1e9, abs=window["uncertainty_j"])
    assert window["ticks"] < 2 * length_ns / COUNTER.period_ns  # an NVML counter would have ticked two and a half times


def test_doctor_names_its_driver_and_its_card(tmp_path: Path) -> None:
    checks = json.loads(gpuledger(tmp_path, "doctor", "--json").stdout)["checks"]
    found = {check["found"]: check["status"] for check in checks}
    assert found["Toy 1.0, 1 GPU"] == "ok"
    assert found["Toy, 140.0 GiB, 2.0 GiB in use + 600.0 MiB reserved by the driver"] == "ok"


def test_the_balance_closes_against_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    toy_vendor.install(site)
    (site / "sitecustomize.py").write_text(PIECES)
    measured = gpuledger(tmp_path, "calibrate", "--json")
    assert measured.status == 0, measured.stderr
    assert json.loads(measured.stdout)["key"]["card"] == "Toy"
    _record_on_the_toy(tmp_path / "gan.ledger", monkeypatch)
    ended = gpuledger(tmp_path, "balance", "gan.ledger", "--json")
    assert ended.status == 0, ended.stderr
    balance = json.loads(ended.stdout)
    lines = {line["name"]: line["bytes"] for line in balance["lines"]}
    assert (balance["device_name"], balance["total_bytes"], balance["process_bytes"]) == ("Toy", 140 * GIB, HELD_BYTES)
    assert (lines["driver"], lines["context"], lines["library"]) == (600 * MIB, 300 * MIB, 230 * MIB)
    assert balance["used_bytes"] == 2 * GIB
    assert sum(line["bytes"] for line in balance["lines"] if line["level"] == 1) == 2 * GIB


def _record_on_the_toy(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a run of a recorded allocator's history, whose GPU is read as a recorded program reads it."""
    journal = _recording(run / "rank-0" / "journal")
    properties = SimpleNamespace(name="Toy", uuid="toy-0", total_memory=140 * GIB, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(opening, "BUILT_IN", (toy_vendor.VENDOR,))
    reader = CardReader()
    versions = {"torch_version": torch.__version__, "cuda_version": str(torch.version.cuda)}
    facts = {**journal.facts, **versions, "devices": reader.describe([0])}
    part = Part(names=journal.names, modules=journal.modules, stacks=journal.stacks, facts=facts)
    for table, columns in journal.tables.items():
        if table not in ("samples", "process_samples") and journal.rows(table):
            part.add(table, **columns)
    for t_ns in journal.tables["counters"]["t_ns"].tolist():
        reader.read(part, t_ns)
    JournalWriter(run / "rank-0" / "journal", write_plain).write(part)
    write_json(run / "manifest.json", {"schema_version": 1, "status": "complete", "notes": []})


def _recording(place: Path) -> Journal:
    place.mkdir(parents=True)
    (place / "00000.npz").write_bytes((RECORDINGS / "gan.npz").read_bytes())
    return read_journal(place)


def test_a_vendor_that_breaks_is_a_finding_and_not_in_the_way_of_the_others(tmp_path: Path) -> None:
    ended = gpuledger(tmp_path, "watch", "--out", "w", "--", "touch", "started", TOY_BROKEN="1")
    assert (ended.status, (tmp_path / "started").exists()) == (4, False)
    assert b"RuntimeError: the toy is broken" in b" ".join(ended.stderr.split())
    assert b"Traceback" not in ended.stderr
