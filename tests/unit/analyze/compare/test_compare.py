"""The figures of one run and of several: known answers, the old logs, and every form of the table."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from folders import DATA
from hypothesis import given
from hypothesis import strategies as st
from imports import make
from synthetic import load_run
from synthetic_work import load_timed
from watched_runs import watch_run

from gpuledger.analyze.compare.compare import FIGURES, compare
from gpuledger.analyze.compare.metrics import measure
from gpuledger.analyze.samples.watched import Watched, watched
from gpuledger.analyze.view.watched_card import read_cards
from gpuledger.cli.main import main
from gpuledger.errors import EmptyRunError
from gpuledger.model.imported import ImportedRank, ImportedRun, rows_to_table, write_imported
from gpuledger.model.run import Run, read_run
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.text.compare_table import comparison_lines

MIB = 1 << 20
S = 10**9
OLD = {"cudnn": (622, 195.6, 2.63), "direct": (622, 218.7, 18.92), "fft": (6247, 2182.1, 18.0),
       "im2col": (622, 199.9, 2.71), "winograd": (4406, 2419.6, 16.63)}  # fmt: skip
"""Peak MiB, mean MiB while active, seconds active."""


def run_of(
    place: Path,
    rows: list[dict[str, Any]],
    windows: list[dict[str, Any]] | None = None,
    name: str = "made",
    **facts: Any,
) -> Run:
    """Return a run with these readings and energy windows."""
    tables = {"samples": rows_to_table("samples", [{"device_idx": 0, **row} for row in rows])}
    if windows:
        tables["windows"] = rows_to_table("windows", [{"device_idx": 0, "ticks": 9, **row} for row in windows])
    rank = ImportedRank(0, tables, {"devices": [{"device_idx": 0, "name": "Card"}]})
    return write_imported(ImportedRun(name, "watch", (), (rank,), facts=facts), place / f"{name}.ledger")


def figures(*arguments: Any, **keywords: Any) -> Watched:
    (found,) = watched(run_of(*arguments, **keywords))
    return found


def ask(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.mark.parametrize("name", OLD)
def test_the_five_old_logs(tmp_path: Path, name: str) -> None:
    (found,) = watched(make("nvidia-smi", tmp_path, DATA / "nvidia_smi" / f"memory_{name}.txt"))
    peak_mib, mean_mib, active_s = OLD[name]
    assert found.peak_bytes == peak_mib * MIB
    assert found.mean_active_bytes is not None
    assert found.mean_active_bytes / MIB == pytest.approx(mean_mib, abs=0.0501)
    assert found.duration_s == found.active_s == active_s
    assert found.area_mib_s == pytest.approx(found.mean_active_bytes / MIB * active_s)
    assert (found.energy_j, found.mean_power_w, found.throttled_s) == (None, None, None)


@pytest.mark.parametrize("mask", [1 << 62, (1 << 63) - 1])
def test_a_damaged_throttle_mask_is_read_and_counts_no_throttling(tmp_path: Path, mask: int) -> None:
    rows = [{"t_ns": n * S, "used_bytes": MIB * n, "throttle": mask} for n in range(3)]
    assert figures(tmp_path, rows).throttled_s == 0.0


def test_bytes_are_above_the_first_reading_and_held_until_the_next(tmp_path: Path) -> None:
    levels = [(0, 100), (1, 100), (2, 300), (4, 200), (5, 100)]
    found = figures(tmp_path, [{"t_ns": t * S, "used_bytes": mib * MIB} for t, mib in levels])
    assert (found.baseline_bytes, found.peak_bytes) == (100 * MIB, 200 * MIB)
    assert found.active_s == 3.0
    assert found.area_mib_s == 200 * 2 + 100 * 1
    assert found.mean_active_bytes == pytest.approx(500 / 3 * MIB)


def test_a_command_gives_the_duration(tmp_path: Path) -> None:
    rows = [{"t_ns": 100 * S + t * S, "used_bytes": t % 2 * MIB} for t in range(5)]
    found = figures(tmp_path, rows, started_ns=100 * S, ended_ns=109 * S, exit_status=3)
    assert (found.duration_s, found.active_s, found.exit_status) == (9.0, 2.0, 3)
    assert not found.notes


def test_energy_is_that_of_the_longest_window(tmp_path: Path) -> None:
    windows = [
        {"start_ns": 0, "end_ns": 10 * S, "energy_j": 5000.0, "uncertainty_j": 12.0, "throttled_ns": 2 * S},
        {"start_ns": 0, "end_ns": 2 * S, "energy_j": 900.0, "uncertainty_j": 3.0, "throttled_ns": 0},
    ]
    rows = [{"t_ns": t * S, "used_bytes": 0, "power_average_w": 499.0, "power_instant_w": 600.0 + t} for t in range(9)]
    found = figures(tmp_path, rows, windows, started_ns=1, ended_ns=10 * S)
    assert (found.energy_j, found.energy_uncertainty_j) == (5000.0, 12.0)
    assert (found.mean_power_w, found.peak_power_w, found.throttled_s) == (500.0, 608.0, 2.0)


def test_without_a_counter_power_is_summed_and_that_is_said(tmp_path: Path) -> None:
    rows = [{"t_ns": t * S, "used_bytes": MIB * (t > 0), "power_average_w": 100.0 + 100 * t} for t in range(5)]
    found = figures(tmp_path, rows, started_ns=1, ended_ns=5 * S)
    assert (found.energy_j, found.energy_uncertainty_j) == (250.0 + 350 + 450, None)
    assert any("integrated from samples" in note for note in found.notes)


def test_throttling_counts_only_what_holds_a_clock_down(tmp_path: Path) -> None:
    masks = [0x1, 0x4, 0x4, 0x0, 0x20, 0x1]
    rows = [{"t_ns": t * S, "used_bytes": 0, "throttle": mask} for t, mask in enumerate(masks)]
    assert figures(tmp_path, rows, started_ns=1, ended_ns=9 * S).throttled_s == 3.0


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 1000)), min_size=2, max_size=60))
def test_area_is_mean_times_active_time_and_peak_bounds_the_mean(
    tmp_path_factory: pytest.TempPathFactory, levels: list[tuple[int, int]]
) -> None:
    times = [sum(gap for gap, _ in levels[:n]) for n in range(len(levels))]
    rows = [{"t_ns": t * S, "used_bytes": mib * MIB} for t, (_, mib) in zip(times, levels, strict=True)]
    found = figures(tmp_path_factory.mktemp("run"), rows)
    assert found.peak_bytes is not None
    if not found.active_s:  # it never rose, so there is nothing to take a mean of, and the log's span is the duration
        assert (found.mean_active_bytes, found.peak_bytes, found.duration_s) == (None, 0, found.duration_s)
        assert found.duration_s
        return
    assert found.mean_active_bytes is not None
    assert found.area_mib_s == pytest.approx(found.mean_active_bytes / MIB * found.active_s)
    assert found.mean_active_bytes <= found.peak_bytes
    assert found.peak_bytes == (max(mib for _, mib in levels) - levels[0][1]) * MIB


def test_a_run_without_a_card_is_compared_by_its_allocator(tmp_path: Path) -> None:
    run = load_run(tmp_path / "cpu.ledger", cuda=False, blocks=300)
    (row,) = compare([run]).rows
    document = json.loads(ask("show", run.path, "--json").stdout)
    assert row.figures.peak_bytes == document["recorded_peak_allocated_bytes"]
    assert row.figures.baseline_bytes == 0


def test_each_figure_is_a_multiple_of_the_firsts(tmp_path: Path) -> None:
    runs = [make("nvidia-smi", tmp_path / name, DATA / "nvidia_smi" / f"memory_{name}.txt") for name in OLD]
    rows = compare(runs).rows
    assert rows[0].ratio_to_first["peak_bytes"] == rows[0].ratio_to_first["duration_s"] == 1
    assert rows[2].ratio_to_first["peak_bytes"] == 6247 / 622
    assert rows[2].ratio_to_first["energy_j"] is None


def test_a_run_without_bytes_is_noted_and_alone_refused(tmp_path: Path) -> None:
    empty = write_imported(ImportedRun("none", "watch", (), (ImportedRank(0, {}),)), tmp_path / "none.ledger")
    with pytest.raises(EmptyRunError, match="no memory samples"):
        compare([empty])
    full = run_of(tmp_path, [{"t_ns": 0, "used_bytes": 0}, {"t_ns": S, "used_bytes": MIB}])
    assert any("none" in note for note in compare([empty, full]).notes)


def test_json_has_the_keys_that_scripts_read() -> None:
    result = ask("compare", DATA / "nvidia_smi", "--json")
    rows = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [row["name"] for row in rows] == [f"memory_{name}" for name in sorted(OLD)]
    for row in rows:
        name = row["name"].removeprefix("memory_")
        assert row["peak_bytes"] == OLD[name][0] * MIB
        assert row["duration_s"] == OLD[name][2]
        assert {"mean_active_bytes", "energy_j", "energy_uncertainty_j", "device_idx", "notes"} <= set(row)
        assert set(row["ratio_to_first"]) == set(FIGURES) <= set(row)


def test_csv_holds_what_json_holds() -> None:
    rows = json.loads(ask("compare", DATA / "nvidia_smi", "--json").stdout)
    table = list(csv.DictReader(io.StringIO(ask("compare", DATA / "nvidia_smi", "--csv").stdout)))
    for row, line in zip(rows, table, strict=True):
        for name in FIGURES:
            assert line[name] == ("" if row[name] is None else str(row[name]))
            times = row["ratio_to_first"][name]
            assert line[f"{name}_ratio_to_first"] == ("" if times is None else str(times))


def test_markdown_is_one_table_whose_cells_no_name_can_leave(tmp_path: Path) -> None:
    rows = [{"t_ns": 0, "used_bytes": 0}, {"t_ns": S, "used_bytes": MIB}]
    for name in ("plain", "a|b <i>`*"):
        run_of(tmp_path, rows, name=name)
    text = ask("compare", tmp_path / "plain.ledger", tmp_path / "a|b <i>`*.ledger", "--markdown").stdout
    head, rule, *body = text.splitlines()
    assert len(body) == 2
    bars = [line.replace("\\|", "").count("|") for line in (head, rule, *body)]
    assert len(set(bars)) == 1
    assert "a\\|b \\<i\\>\\`\\*" in text


def test_text_marks_a_failed_command_and_fits_the_terminal(tmp_path: Path) -> None:
    rows = [{"t_ns": 0, "used_bytes": 0}, {"t_ns": S, "used_bytes": MIB}]
    runs = [run_of(tmp_path, rows, name="good"), run_of(tmp_path, rows, name="bad", exit_status=3)]
    comparison = compare(runs)
    whole = comparison_lines(comparison, Terminal())
    assert "exit status 3" in whole[2]
    assert "exit status" not in whole[1]
    assert "1 MiB" in whole[1]
    assert all(len(line) <= 60 for line in comparison_lines(comparison, Terminal(60)))


def test_one_form_at_a_time() -> None:
    assert ask("compare", DATA / "nvidia_smi", "--json", "--csv").exit_code == 2


def test_what_is_shared_is_noted_once() -> None:
    told = ask("compare", DATA / "nvidia_smi").stderr
    assert told.count("The run has no command, so its duration") == 1
    assert told.count("samples are 10 ms apart") == 1
    assert "Next" in told


def test_a_folder_stands_for_the_runs_in_it(tmp_path: Path) -> None:
    for name in ("b", "a"):
        run_of(tmp_path, [{"t_ns": 0, "used_bytes": 0}, {"t_ns": S, "used_bytes": MIB}], name=name)
    rows = json.loads(ask("compare", tmp_path, "--json").stdout)
    assert [row["name"] for row in rows] == ["a", "b"]
    assert read_run(tmp_path / "a.ledger").name == "a"


def test_a_program_that_is_read_less_often_than_its_card_holds_its_bytes(tmp_path: Path) -> None:
    """The GPU is read every 5 ms, its processes every 50: between two readings the program is still there."""
    samples = [{"t_ns": 5 * t, "device_idx": 0, "used_bytes": 9 * MIB} for t in range(401)]
    held = [{"t_ns": 50 * t, "device_idx": 0, "pid": 7, "bytes": 6 * MIB} for t in range(5, 21)]
    tables = {name: rows_to_table(name, rows) for name, rows in (("samples", samples), ("process_samples", held))}
    rank = ImportedRank(0, tables, {"pids": [7]})
    run = write_imported(ImportedRun("w", "watch", (), (rank,)), tmp_path / "w.ledger")
    (card,) = read_cards(run, run.ranks)
    program = dict(zip(card.t_ns.tolist(), card.bytes[0].tolist(), strict=True))
    assert {program[t] for t in program if 250 <= t <= 1000} == {6 * MIB}
    assert {program[t] for t in program if t < 250 or t > 1200} == {0}
    assert {int(total) for total in card.bytes.sum(axis=0)} == {9 * MIB}


def test_a_watched_run_is_shown_by_its_cards(tmp_path: Path) -> None:
    watch_run(tmp_path / "w.ledger", [0, 5 * MIB, 5 * MIB], energy_j=30.0)
    done = CliRunner().invoke(main, ["show", str(tmp_path / "w.ledger")])
    assert done.exit_code == 0
    assert "Peak memory         5.0 MiB" in done.stdout
    done = CliRunner().invoke(main, ["show", "--json", str(tmp_path / "w.ledger")])
    assert json.loads(done.stdout)[0]["peak_bytes"] == 5 * MIB


def test_recordings_have_step_time_and_energy_of_a_step(tmp_path: Path) -> None:
    runs = [load_timed(tmp_path / f"{name}.ledger", blocks=100, modules=4, spans=12) for name in ("a", "b")]
    rows = compare(runs).rows
    measured = measure(runs[0].rank(), 0)
    for name in ("step_time_ns", "step_energy_j"):
        assert [row.value(name) for row in rows] == [pytest.approx(measured[name].value)] * 2
        assert rows[1].ratio_to_first[name] == 1.0
    head = ask("compare", *(run.path for run in runs), "--markdown").stdout.splitlines()[0]
    assert "| step time | energy per step |" in head
