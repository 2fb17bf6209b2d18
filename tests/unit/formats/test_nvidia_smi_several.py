"""Logs of hosts with several GPUs whose query did not ask which GPU a row is of."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuledger.cli.main import main
from gpuledger.errors import InputError
from gpuledger.formats.readers import read_files
from gpuledger.model.imported import ImportedRun

MIB = 1 << 20


def read(place: Path, *lines: str) -> ImportedRun:
    path = place / "current_A30.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_files("nvidia-smi", (path,), "log", {})


def used_mib(run: ImportedRun) -> dict[int, list[int]]:
    """Return the used MiB of each GPU."""
    found: dict[int, list[int]] = {}
    for row in run.ranks[0].tables["samples"].to_pylist():
        found.setdefault(row["device_idx"], []).append(row["used_bytes"] // MIB)
    return found


def timed(milliseconds: int, used: int) -> str:
    return f"2024/10/10 13:18:{milliseconds // 1000:02}.{milliseconds % 1000:03}, {used} MiB"


@pytest.mark.parametrize("apart_ms", [0, 3])
def test_rows_that_come_in_rounds_are_of_one_gpu_after_the_other(apart_ms: int, tmp_path: Path) -> None:
    lines = [timed(100 * tick + apart_ms * gpu, 1000 * gpu + tick) for tick in range(8) for gpu in range(3)]
    run = read(tmp_path, "timestamp, memory.used [MiB]", *lines)
    assert used_mib(run) == {gpu: [1000 * gpu + tick for tick in range(8)] for gpu in range(3)}
    assert any("3 GPUs were found by the order" in note for note in run.ranks[0].notes)


@pytest.mark.parametrize(("rounds", "gpus"), [(2, 1), (3, 2), (4, 2)])
def test_three_rounds_tell_gpus_apart_and_two_could_be_chance(rounds: int, gpus: int, tmp_path: Path) -> None:
    lines = [timed(100 * tick + 3 * gpu, 1000 * gpu) for tick in range(rounds) for gpu in range(2)]
    assert len(used_mib(read(tmp_path, "timestamp, memory.used [MiB]", *lines))) == gpus


def test_a_log_that_was_cut_in_a_round_keeps_what_there_is(tmp_path: Path) -> None:
    lines = [timed(100 * tick, 1000 * gpu + tick) for tick in range(5) for gpu in range(2)]
    assert used_mib(read(tmp_path, "timestamp, memory.used [MiB]", *lines[:-1])) == {
        0: [0, 1, 2, 3, 4],
        1: [1000, 1001, 1002, 1003],
    }


def test_rows_of_different_models_are_of_different_gpus(tmp_path: Path) -> None:
    rows = [f"{name}, {used + tick} MiB" for tick in range(4) for name, used in (("NVIDIA A30", 10), ("Tesla T4", 500))]
    run = read(tmp_path, "name, memory.used [MiB]", *rows)
    assert used_mib(run) == {0: [10, 11, 12, 13], 1: [500, 501, 502, 503]}
    assert [device["name"] for device in run.ranks[0].facts["devices"]] == ["NVIDIA A30", "Tesla T4"]


def test_two_gpus_of_one_model_beside_another_are_three(tmp_path: Path) -> None:
    gpus = (("NVIDIA A30", 10), ("NVIDIA A30", 200), ("Tesla T4", 500))
    rows = [f"2024/10/10 13:18:0{tick}.000, {name}, {used + tick} MiB" for tick in range(5) for name, used in gpus]
    found = used_mib(read(tmp_path, "timestamp, name, memory.used [MiB]", *rows))
    assert [values[0] for values in found.values()] == [10, 200, 500]


def test_rows_of_a_uuid_are_told_apart_by_it(tmp_path: Path) -> None:
    rows = [f"GPU-{gpu}2345678-aaaa, {gpu}00 MiB" for _ in range(3) for gpu in (1, 2)]
    assert used_mib(read(tmp_path, "uuid, memory.used [MiB]", *rows)) == {0: [100] * 3, 1: [200] * 3}


def test_rows_of_one_moment_that_nothing_tells_apart_are_refused_with_the_reason(tmp_path: Path) -> None:
    moments = [0, 0, 100, 100, 100, 200, 300, 300, 300, 300, 400, 400]
    lines = [timed(moment, number) for number, moment in enumerate(moments)]
    with pytest.raises(InputError, match=r"several rows have the same time"):
        read(tmp_path, "timestamp, memory.used [MiB]", *lines)
    result = CliRunner().invoke(main, ["import", "nvidia-smi", str(tmp_path / "current_A30.log")])
    assert result.exit_code == 3


def test_one_gpu_read_each_millisecond_with_times_that_coincide_stays_one(tmp_path: Path) -> None:
    moments = [0, 1, 2, 2, 3, 5, 6, 7, 7, 8, 9, 11, 12]
    lines = [timed(moment, number) for number, moment in enumerate(moments)]
    assert list(used_mib(read(tmp_path, "timestamp, memory.used [MiB]", *lines))) == [0]


def test_cells_of_two_locales_in_one_log_are_read(tmp_path: Path) -> None:
    """A log of two commands, one under a locale with decimal commas; what is neither is named with its line."""
    lines = [
        "timestamp, power.draw [W], memory.used [MiB]",
        "2024/10/10 13:18:58.100, 28.54 W, 230 MiB",
        "2024/10/10 13:18:58.200, 28,54 W, 231 MiB",
        "timestamp, power.draw [W], memory.used [MiB]",
        "2024/10/10 13:18:58.300, 28;54 W, 232 MiB",
        "2024/10/10 13:18:58.400, ٢٨ W, 233 MiB",
    ]
    run = read(tmp_path, *lines)
    assert used_mib(run) == {0: [230, 231]}
    assert [row["power_average_w"] for row in run.ranks[0].tables["samples"].to_pylist()] == [28.54, 28.54]
    assert ["line 5" in run.unread[0], "line 6" in run.unread[1], len(run.unread)] == [True, True, 2]
