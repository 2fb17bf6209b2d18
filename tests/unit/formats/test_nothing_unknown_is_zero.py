"""What an older file does not tell is null, an empty cell or a dash: over all importers and all commands."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from folders import DATA

from gpuledger.cli.main import main

UNTIMED = {
    "memory_csv": DATA / "memory_csv" / "20200405120000.csv",
    "memory_csv with a cache": DATA / "memory_csv" / "20200406080000.csv",
    "mxnet, headerless": DATA / "mxnet" / "mxnet_gpu_memory_profiler.csv",
    "mxnet, five columns": DATA / "mxnet" / "gpu_memory_profile-pid_4321.csv",
    "mxnet, trees": DATA / "mxnet_written" / "gpu_memory_profile.json",
    "mxnet, stacks": DATA / "mxnet_written" / "mxnet_gpu_memory_profiler_output.log",
    "tbd, log": DATA / "tbd" / "sockeye.log",
    "tbd, log with free memory": DATA / "tbd" / "rcnn.log",
    "tbd, analysis": DATA / "tbd" / "memory_analysis" / "resnet_ANALYSIS",
}
TIMED = {
    "mxnet, seven columns": DATA / "mxnet" / "mxnet_gpu_memory_profiler_alloc.csv",
    "nvidia-smi": DATA / "nvidia_smi" / "memory_cudnn.txt",
    "time log": DATA / "time_log" / "logALEX.txt",
}
COMMANDS = (["show"], ["balance"], ["group"], ["compare"], ["diff"])
LINES = "free_segments|awaiting_free|other_processes"
MEASURED = re.compile(rf"(_ns|_s|_j|_w|_frac|mean_active_bytes)$|^({LINES})$")
"""Figures that no untimed file tells; a group or a category that holds 0 bytes is known to hold them."""
COUNTERS = ("--to", "csv", "--table", "counters", "-o", "-")
ZERO = re.compile(r"(?<![\d.,])-?0(\.0+)? (ns|µs|ms|s|J|mJ|W)\b")


def ask(command: list[str], path: Path, *more: str) -> Any:
    paths = [str(path)] * (2 if command == ["diff"] else 1)
    return CliRunner().invoke(main, [*command, *paths, *more])


def figures(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each figure of a document with its key; a line of a balance has the line's name."""
    if isinstance(value, dict):
        named = value.get("name") if set(value) >= {"name", "bytes", "level"} else None
        for key, inner in value.items():
            yield from figures(inner, str(named) if key == "bytes" and named else key)
    elif isinstance(value, list):
        for inner in value:
            yield from figures(inner, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("path", UNTIMED.values(), ids=UNTIMED)
def test_no_document_and_no_text_has_a_zero_for_what_an_untimed_file_does_not_tell(
    path: Path, command: list[str]
) -> None:
    result = ask(command, path, "--json")
    assert result.exit_code == 0, result.output
    assert [(name, value) for name, value in figures(json.loads(result.stdout)) if MEASURED.search(name)] == []
    text = ask(command, path)
    assert text.exit_code == 0
    assert not ZERO.search(text.output), ZERO.search(text.output)


@pytest.mark.parametrize("path", [*UNTIMED.values(), *TIMED.values()], ids=[*UNTIMED, *TIMED])
def test_no_cell_of_a_comparison_is_a_zero_that_was_not_measured(path: Path) -> None:
    result = ask(["compare"], path, "--csv")
    assert result.exit_code == 0, result.output
    for row in csv.DictReader(io.StringIO(result.stdout)):
        untold = [name for name in row if re.search(r"duration|active_s|mean|area|energy|power|throttled|total_", name)]
        assert [name for name in untold if row[name] and float(row[name]) == 0] == []


@pytest.mark.parametrize("path", UNTIMED.values(), ids=UNTIMED)
def test_no_exported_cell_is_a_zero_for_what_the_file_does_not_tell(path: Path) -> None:
    for table in ("blocks", "segments", "counters", "samples", "steps"):
        result = ask(["export"], path, "--to", "csv", "--table", table, "-o", "-")
        assert result.exit_code == 0, result.output
        for row in csv.DictReader(io.StringIO(result.stdout)):
            untold = [name for name in row if name in ("stream", "paused_ns") or name.endswith("_ns")]
            assert [(name, row[name]) for name in untold if row[name] != ""] == []


@pytest.mark.parametrize("path", TIMED.values(), ids=TIMED)
def test_no_view_of_a_timed_file_shows_a_time_of_nothing(path: Path) -> None:
    for command in (["show"], ["compare"]):
        result = ask(command, path)
        assert result.exit_code == 0, result.output
        assert not ZERO.search(result.output), result.output


def test_the_memory_of_a_power_log_that_never_rises_has_a_duration_and_no_mean(tmp_path: Path) -> None:
    """14.51 s of a GPU whose memory stays: its time is the log's, its mean above the first reading is of nothing."""
    lines = [f"2024/10/10 13:18:{5 + tick / 100:06.3f}, 81, 145.99, 4396, 11264" for tick in range(1452)]
    path = tmp_path / "current_A30.log"
    header = "timestamp, utilization.gpu [%], power.draw [W], memory.used [MiB], memory.total [MiB]"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    (row,) = json.loads(ask(["show"], path, "--json").stdout)
    assert row["duration_s"] == pytest.approx(14.52, abs=0.02)
    assert row["mean_active_bytes"] is None
    assert row["mean_power_w"] == pytest.approx(145.99)
    assert row["energy_j"] == pytest.approx(14.51 * 145.99, rel=1e-6)
    assert not ZERO.search(ask(["show"], path).output)


def shown(path: Path) -> list[dict[str, Any]]:
    """Return the documents of ``show --json``, one for each device."""
    document = json.loads(ask(["show", "--json"], path).stdout)
    return document if isinstance(document, list) else [document]


WITHOUT_RESERVED = sorted(set(UNTIMED) - {"memory_csv", "memory_csv with a cache"})


@pytest.mark.parametrize("name", WITHOUT_RESERVED)
def test_reserved_memory_that_a_file_does_not_tell_is_not_taken_from_the_allocated(name: str, tmp_path: Path) -> None:
    for device in shown(UNTIMED[name]):
        assert device["peak_allocated_bytes"] > 0
        reserved = ("peak_reserved_bytes", "recorded_peak_reserved_bytes", "reserved_bytes")
        assert [device[key] for key in reserved] == [None, None, None]
    assert "B reserved" not in ask(["show"], UNTIMED[name]).stdout
    metrics = json.loads(ask(["diff"], UNTIMED[name], "--json").stdout)
    assert "peak_reserved_bytes" not in json.dumps(metrics)
    exported = list(csv.DictReader(io.StringIO(ask(["export"], UNTIMED[name], *COUNTERS).stdout)))
    assert {row["reserved_bytes"] for row in exported} <= {""}


def test_reserved_memory_that_a_file_tells_is_shown() -> None:
    path = UNTIMED["memory_csv with a cache"]
    (device,) = shown(path)
    assert (device["peak_reserved_bytes"], device["recorded_peak_reserved_bytes"]) == (857_000_000, 857_000_000)
    exported = list(csv.DictReader(io.StringIO(ask(["export"], path, *COUNTERS).stdout)))
    assert max(int(row["peak_reserved_bytes"]) for row in exported) == 857_000_000


def test_nothing_is_advised_on_what_a_file_does_not_tell() -> None:
    """Cached memory that no column explains is no fragmentation, and sizes without a module are no loss."""
    text = ask(["show"], UNTIMED["memory_csv with a cache"]).stdout
    assert "halve the batch" in text
    assert "such as the loss" not in text
    assert "expandable_segments" not in text
