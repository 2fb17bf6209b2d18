"""The drop-in's CSV read back: each figure of its report, to the byte, on its device, at its iteration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from imports import make, rows, show, words

from gpuledger.analyze.overview.balance import build_balance
from gpuledger.analyze.overview.iteration import Iteration
from gpuledger.analyze.samples.series import build_series
from gpuledger.cli.main import main
from gpuledger.integrations.memory_table import MB, CsvFile, MemoryReport

AT_PEAK = (
    ("weight", 8_008_000),
    ("weight of other modules", 1_001),
    ("buffer", 1_200),
    ("input", 256_000),
    ("activation", 60_000_003),
    ("gradient", 4_004_000),
    ("activation_gradient", 2_000_000),
    ("optimizer_state", 16_016_000),
    ("temporary", 512),
    ("workspace", 10_000_000),
    ("rounding", 27_464),
)
ALLOCATED = sum(size for _, size in AT_PEAK)
BEYOND = (("fragmented", 3_000_000), ("free_segments", 2_097_152), ("awaiting_free", 0), ("not_cached_yet", 1_000_000))
CARD = (
    ("context", 500_000_000),
    ("library", 90_000_000),
    ("driver", 600_000_000),
    ("other_processes", 7_000_000),
    ("unaccounted", 1_234_567),
)
ON_GPU = Iteration(
    device_idx=1,
    peak_cached_bytes=ALLOCATED + sum(size for _, size in BEYOND),
    current_cached_bytes=ALLOCATED,
    feature_map_bytes=61_000_007,
    gradient_bytes=8_008_000,
    intermediate_gradient_bytes=3_000_001,
    optimizer_state_bytes=16_016_000,
    buffer_bytes=1_200,
    temporary_bytes=5_000_000,
    allocated_bytes=ALLOCATED,
    at_peak=AT_PEAK,
    beyond=BEYOND,
    card=CARD,
)
WEIGHTS = (("0.weight", 4_000_000), ("0.bias", 4_000), ("2.weight", 4_000_000), ("2.bias", 4_000))


def written(directory: Path, *devices: Iteration, places: tuple[tuple[int, int], ...] = ((1, 5),)) -> Path:
    """Return a CSV as the drop-in writes it: a row for each (epoch, iteration)."""
    file = CsvFile(directory / "memory_csv_data", [name for name, _ in WEIGHTS])
    for epoch, iteration in places:
        file.add(MemoryReport(epoch, iteration, 8_008_000, WEIGHTS, 8_008_000, WEIGHTS, devices))
    return file.path


def test_the_peak_and_its_lines_are_the_ones_that_the_table_prints(tmp_path: Path) -> None:
    assert ALLOCATED == 100_314_180
    shown = show(written(tmp_path, ON_GPU))
    assert shown["peak_allocated_bytes"] == ALLOCATED
    found: dict[str, int] = {}
    for row in shown["breakdown"]:
        found[row["category"]] = found.get(row["category"], 0) + row["bytes"]
    assert found == {**dict(AT_PEAK[2:]), "weight": 8_008_000 + 1_001}
    assert shown["device_idx"] == 1


def test_the_gpu_s_lines_close_as_they_were_recorded(tmp_path: Path) -> None:
    balance = build_balance(make("memory-csv", tmp_path, written(tmp_path, ON_GPU)).rank())
    lines = {line.name: line.bytes for line in balance.lines}
    assert {name: lines[name] for name, _ in (*CARD, *BEYOND[:3])} == dict((*CARD, *BEYOND[:3]))
    assert balance.unaccounted_bytes == 1_234_567


def test_every_quantity_s_highest_bytes_are_in_the_run_to_the_byte(tmp_path: Path) -> None:
    rank = make("memory-csv", tmp_path, written(tmp_path, ON_GPU)).rank()
    assert _highest(rank, "activation", "input") == 61_000_007
    assert _highest(rank, "activation_gradient") == 3_000_001
    assert _highest(rank, "temporary") == 5_000_000
    assert _highest(rank, "gradient") == 8_008_000
    assert {row["peak_reserved_bytes"] for row in rows(rank, "counters")} == {ON_GPU.peak_cached_bytes}
    assert {row["reserved_bytes"] for row in rows(rank, "counters")} == {ON_GPU.current_cached_bytes}


def _highest(rank: Any, *categories: str) -> int:
    """Return the most requested bytes that some categories hold together."""
    changes = []
    for row in rows(rank):
        if row["category"] in categories:
            changes.append((row["alloc_index"], row["requested_bytes"]))
            changes += [] if row["free_index"] is None else [(row["free_index"], -row["requested_bytes"])]
    held = best = 0
    for _, change in sorted(changes):
        held += change
        best = max(best, held)
    return best


def test_epochs_and_iterations_are_steps_that_show_plot_and_diff_know(tmp_path: Path) -> None:
    path = written(tmp_path, ON_GPU, places=((1, 2), (1, 4), (2, 2), (2, 4)))
    assert [row["step"] for row in rows(make("memory-csv", tmp_path, path).rank(), "steps")] == [2, 4, 6, 8]
    assert show(path, "--step", "6")["peak_allocated_bytes"] == ALLOCATED
    result = CliRunner().invoke(main, ["diff", str(path), str(path), "--step", "6"])
    assert (result.exit_code, "no difference" in result.stdout) == (0, True)
    unknown = CliRunner().invoke(main, ["show", str(path), "--step", "5"])
    assert "Choose a recorded step: 2, 4, 6, 8" in unknown.stderr
    (series,), _ = build_series([make("memory-csv", tmp_path / "again", path)])
    assert series.t_s.tolist() == [2, 4, 6, 8]
    assert set(series.values.tolist()) == {float(ALLOCATED)}
    assert series.line.clock == "step"


def test_a_recording_on_the_cpu_is_the_cpu_s(tmp_path: Path) -> None:
    none = tuple((name, None) for name, _ in CARD)
    on_cpu = replace(ON_GPU, device_idx=-1, beyond=tuple((name, 0) for name, _ in BEYOND), card=none)
    path = written(tmp_path, replace(on_cpu, peak_cached_bytes=ALLOCATED))
    assert show(path)["device_idx"] == -1
    assert build_balance(make("memory-csv", tmp_path, path).rank()).unaccounted_bytes is None


def test_a_file_of_the_older_tool_without_a_cache_in_any_row_is_the_cpu_s(tmp_path: Path) -> None:
    header = "epoch,iteration,peak_cached,current_cached,total_feature_map_usage,total_weight_usage,0.weight,"
    header += "total_layer_weight_gradient_usage,0.weight_grad,intermediate_gradients"
    path = tmp_path / "20200405120000.csv"
    path.write_text(f"{header}\r\n1,1,0,0,1,4,4,0,0,4\r\n1,2,0,0,2,4,4,0,0,8\r\n", encoding="utf-8")
    assert show(path)["device_idx"] == -1


def test_sums_over_several_gpus_say_so(tmp_path: Path) -> None:
    run = make("memory-csv", tmp_path, written(tmp_path, ON_GPU, replace(ON_GPU, device_idx=2)))
    assert "The sizes are sums over cuda:1, cuda:2." in run.rank().manifest.notes
    text = CliRunner().invoke(main, ["show", str(run.path)]).stdout
    assert "on cuda:1 (sum of cuda:1, cuda:2)" in text
    assert show(run.path)["peak_allocated_bytes"] == 2 * ALLOCATED


def test_a_model_s_own_names_are_not_taken_for_the_drop_in_s_columns(tmp_path: Path) -> None:
    names = (("buffer", 4_000_000), ("temporary", 4_008_000))
    file = CsvFile(tmp_path / "out", [name for name, _ in names])
    file.add(MemoryReport(1, 1, 8_008_000, names, 8_008_000, names, (ON_GPU,)))
    found = {(name, category): size for name, category, _, size in words(make("memory-csv", tmp_path, file.path))}
    assert (found["buffer", "weight"], found["temporary", "weight"]) == (4_000_000, 4_008_000)
    assert (found["buffer", "buffer"], found["temporary", "temporary"]) == (1_200, 512)
    assert show(file.path)["peak_allocated_bytes"] == ALLOCATED


def test_a_run_without_times_has_no_duration_and_no_step_time(tmp_path: Path) -> None:
    path = written(tmp_path, ON_GPU)
    result = CliRunner().invoke(main, ["compare", str(path), "--json"])
    (row,) = json.loads(result.stdout)
    assert [row[name] for name in ("duration_s", "mean_active_bytes", "area_mib_s", "active_s")] == [None] * 4
    assert "0 ns" not in CliRunner().invoke(main, ["show", str(path)]).output


@pytest.mark.parametrize("changed", ["at_peak", "allocated_bytes"])
def test_a_row_whose_peak_does_not_sum_is_named(changed: str, tmp_path: Path) -> None:
    wrong: dict[str, Any] = {changed: {"at_peak": AT_PEAK[1:], "allocated_bytes": ALLOCATED + 1}[changed]}
    file = CsvFile(tmp_path / "out", [name for name, _ in WEIGHTS])
    devices = (ON_GPU, replace(ON_GPU, **wrong))
    for number, device in enumerate(devices, 1):
        file.add(MemoryReport(1, number, 8_008_000, WEIGHTS, 8_008_000, WEIGHTS, (device,)))
    result = CliRunner().invoke(main, ["show", str(file.path)])
    assert result.exit_code == 3
    assert "line 3: lines of the peak that do not sum" in result.stderr


def test_the_file_states_the_older_columns_in_mb_and_the_same_in_bytes(tmp_path: Path) -> None:
    header, row = (line.split(",") for line in written(tmp_path, ON_GPU).read_text("utf-8").splitlines())
    cells = dict(zip(header, row, strict=True))
    assert (cells["total_feature_map_usage"], cells["feature_map_bytes"]) == ("61", "61000007")
    assert (cells["peak_cached"], cells["peak_cached_bytes"]) == (
        str(round(ON_GPU.peak_cached_bytes / MB)),
        str(ON_GPU.peak_cached_bytes),
    )
    assert sum(int(cells[name]) for name in header if name.startswith("at_peak_")) == ALLOCATED
    assert cells["device"] == "cuda:1"
