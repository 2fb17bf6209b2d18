"""Time and energy by source line and function: they sum to those of the step, and rows without a line are one row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from synthetic_work import load_timed

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.lines.source_lines import NO_LINE
from gpuledger.analyze.step.energy import step_energy
from gpuledger.analyze.step.line_accounts import energies_by_line, lacks_lines, times_by_line, why_no_lines
from gpuledger.analyze.step.side_by_side import IDLE_LABEL, lines_by
from gpuledger.analyze.step.times import break_down_time
from gpuledger.analyze.view.options import ViewOptions
from gpuledger.analyze.view.view import build_view
from gpuledger.model.manifest import World
from gpuledger.model.pass_facts import Fusion, LineStep
from gpuledger.model.run import KeptRank, Rank
from gpuledger.model.schema.tables import TABLES
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.text.show_text import TableOptions, closing_lines, show_lines

PLACES = (("train.py", 3, "loss"), ("train.py", 8, "loss"), ("train.py", 12, "main"))


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    """Return a rank in which every fourth kernel has no line, and the others have one of three."""
    return with_lines(load_timed(tmp_path / "run.ledger").rank(), lambda place: None if place % 4 == 3 else place % 4)


def with_lines(found: Rank, stack_of: Callable[[int], int | None]) -> Rank:
    """Return a rank whose row ``place`` of work has the stack ``stack_of(place)``."""
    tables = {name: found.table(name) for name in TABLES}
    spans, column = tables["spans"], TABLES["spans"].column_names.index("stack_id")
    ids = [stack_of(place) for place in range(spans.num_rows)]
    tables["spans"] = spans.set_column(column, spans.schema.field(column), pa.array(ids, pa.int32()))
    rows = [
        {"stack_id": number, "frame_idx": 0, "file": file, "line": line, "function": function}
        for number, (file, line, function) in enumerate(PLACES)
    ]
    tables["stacks"] = pa.Table.from_pylist(rows, TABLES["stacks"].arrow_schema())
    return KeptRank(0, found.directory, found.manifest, tables=tables)


@pytest.mark.parametrize(
    ("word", "labels"),
    [
        ("line", {"train.py:3 loss", "train.py:8 loss", "train.py:12 main", NO_LINE}),
        ("function", {"train.py loss", "train.py main", NO_LINE}),
    ],
)
def test_lines_sum_to_the_step(rank: Rank, word: str, labels: set[str]) -> None:
    times, step, energies = break_down_time(rank), step_energy(rank, 0), energies_by_line(rank, 0, word)
    assert times is not None
    assert step is not None
    by_line = times_by_line(rank, 0, word)
    assert {one.module for one in by_line} == labels
    assert sum(one.time_ns for one in by_line) == pytest.approx(times.work_ns)
    assert {one.module for one in energies if one.module} == labels
    assert sum(one.energy_j for one in energies) == pytest.approx(step.energy_j)
    assert sum(line.time_ns for line in times.lines) == pytest.approx(times.work_ns)


def test_a_table_by_line_has_bytes_time_and_energy(rank: Rank) -> None:
    breakdown = break_down(rank, find_peak(rank, 0), by=("category", "line"))
    lines, step, times = lines_by(rank, breakdown, "line"), step_energy(rank, 0), break_down_time(rank)
    assert step is not None
    assert times is not None
    assert sum(line.bytes or 0 for line in lines) == breakdown.allocated_bytes
    assert sum(line.time_ns or 0 for line in lines) == pytest.approx(times.work_ns)
    assert sum(line.energy_j or 0 for line in lines) == pytest.approx(step.energy_j)
    assert {NO_LINE, IDLE_LABEL, "train.py:3 loss"} <= {line.label for line in lines}


def test_a_run_without_measurements_has_none(tmp_path: Path) -> None:
    found = load_timed(tmp_path / "run.ledger").rank()
    without = {name: found.table(name) for name in TABLES} | {"spans": TABLES["spans"].arrow_schema().empty_table()}
    bare = KeptRank(0, found.directory, found.manifest, tables=without)
    assert times_by_line(bare, 0, "line") == ()


def test_times_without_any_line_are_unknown_and_the_view_says_why(tmp_path: Path) -> None:
    run = load_timed(tmp_path / "run.ledger")  # its work has no line
    view = build_view(run, ViewOptions(group_by="line"))
    assert all(one.time_ns is None and one.energy_j is None for one in view.highest.lines)
    assert times_by_line(run.rank(), 0, "line") == ()
    assert energies_by_line(run.rank(), 0, "line") == ()
    assert NO_LINE not in "\n".join(show_lines(view, TableOptions(), Terminal()))
    assert f"Note  {why_no_lines(run.rank())}" in closing_lines(view, "run", Terminal())
    by_module = build_view(run, ViewOptions(group_by="module"))
    assert not any("source lines" in line for line in closing_lines(by_module, "run", Terminal()))


def test_times_of_which_little_has_a_line_are_shown_without_lines(tmp_path: Path) -> None:
    found = load_timed(tmp_path / "run.ledger").rank()
    starts, ends = (found.table("spans").column(name).to_pylist() for name in ("start_ns", "end_ns"))
    durations = [end - start for start, end in zip(starts, ends, strict=True)]
    shortest = durations.index(min(durations))
    cut_short = with_lines(found, lambda place: 0 if place == shortest else None)
    assert lacks_lines(cut_short, 0)
    assert times_by_line(cut_short, 0, "line") == ()
    assert energies_by_line(cut_short, 0, "line") == ()
    with_tables = {name: cut_short.table(name) for name in TABLES}
    fusions = (Fusion(file="f.py", line=1, kernel="k"),)  # generated code has no lines in any step
    compiled = KeptRank(0, cut_short.directory, replace(cut_short.manifest, fusions=fusions), tables=with_tables)
    assert not lacks_lines(compiled, 0)


def test_a_view_with_lines_needs_no_reason(rank: Rank) -> None:
    assert not lacks_lines(rank, 0)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"stacks": False}, "without Python stacks"),
        ({"world": World(size=2, rank=0)}, "several ranks"),
        ({"line_step": LineStep(step=7, from_ns=1), "steps_seen": 20}, "ended early"),
        (
            {"time_steps": (4, 6), "steps_seen": 6},
            "the program ended before the step that records them. Use --steps 1:1",
        ),
        ({"stacks": True, "steps_seen": 20}, "no step in which they were recorded"),
    ],
)
def test_the_reason_for_times_without_lines(rank: Rank, facts: dict[str, Any], reason: str) -> None:
    manifest = replace(rank.manifest, **({"stacks": True} | facts))
    assert reason in why_no_lines(KeptRank(0, rank.directory, manifest, tables={}))
