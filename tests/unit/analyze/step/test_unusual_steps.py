"""A profiled step with other work in it, such as clustering between two trainings, is no usual step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from present import present
from synthetic_work import TIME_STEPS, load_timed

from gpuledger.analyze.overview.summary import summarize
from gpuledger.analyze.step.times import break_down_time
from gpuledger.analyze.step.work import OF_ALL_THREADS, read_work, work_note
from gpuledger.model.run import KeptRank

FIRST, SECOND = TIME_STEPS
TABLES = ("steps", "blocks", "segments", "counters", "modules", "names", "stacks", "spans")


def with_steps(path: Path, *repeats: int) -> KeptRank:
    """Return a timed run in which each profiled step has the work of the first one, some times over."""
    rank = load_timed(path, host=True).rank(0)
    spans = rank.table("spans")
    work = spans.filter(pc.equal(spans["step"], FIRST))
    parts: list[Any] = [spans.filter(pc.less(spans["step"], FIRST))]
    for number, count in enumerate(repeats):
        field = work.schema.field("step")
        steps = pa.array(np.full(work.num_rows, FIRST + number), field.type)
        parts += [work.set_column(work.schema.get_field_index("step"), field, steps)] * count
    tables = {name: rank.table(name) for name in TABLES[:-1]} | {"spans": pa.concat_tables(parts)}
    manifest = replace(rank.manifest, time_steps=(FIRST, FIRST + len(repeats) - 1))
    return KeptRank(rank.number, rank.directory, manifest, tables=tables)


@pytest.mark.parametrize(
    ("repeats", "left_out"), [((20, 1, 1), FIRST), ((1, 1, 4), FIRST + 2), ((3, 1, 1), None), ((20, 1), None)]
)
def test_a_step_with_far_more_work_is_left_out_and_named(
    repeats: tuple[int, ...], left_out: int | None, tmp_path: Path
) -> None:
    rank = with_steps(tmp_path / "run.ledger", *repeats)
    work, times = present(read_work(rank)), present(break_down_time(rank))
    assert work.steps == times.steps == len(repeats) - (left_out is not None)
    usual = present(read_work(with_steps(tmp_path / "usual.ledger", 1)))
    expected = 1.0 if left_out is not None else sum(repeats) / len(repeats)
    assert times.work_ns == pytest.approx(expected * float(usual.duration_ns.sum()))
    note = work_note(rank, -1)
    assert (note is None) is (left_out is None)
    if note is not None:
        assert note.startswith(f"Times by module leave step {left_out} out: ")
        assert note in summarize(rank, -1).notes


def with_evaluations(rank: KeptRank, evaluating: set[int], most_spans: int) -> KeptRank:
    """Return the rank with work of an evaluation in some steps, in place of at most that many spans of backward."""
    spans = rank.table("spans")
    phases = spans["phase"].to_pylist()
    for number in evaluating:
        rows = [row for row, step in enumerate(spans["step"].to_pylist()) if step == number]
        for row in [row for row in rows if phases[row] == "backward"][:most_spans]:
            phases[row] = "evaluation"
    field = spans.schema.field("phase")
    column = pa.array(phases, pa.string()).cast(field.type)
    tables = {name: rank.table(name) for name in TABLES[:-1]}
    tables["spans"] = spans.set_column(spans.schema.get_field_index("phase"), field, column)
    return KeptRank(rank.number, rank.directory, rank.manifest, tables=tables)


@pytest.mark.parametrize(
    ("evaluating", "most_spans", "left_out"),
    [
        ({FIRST + 2}, 1000, FIRST + 2),
        ({FIRST, FIRST + 1}, 1000, None),  # most steps evaluate
        ({FIRST, FIRST + 1, FIRST + 2}, 1000, None),
        ({FIRST + 2}, 1, None),  # it takes hardly any time
    ],
)
def test_a_step_after_which_the_program_evaluates_is_left_out_and_named(
    evaluating: set[int], most_spans: int, left_out: int | None, tmp_path: Path
) -> None:
    """The step time is a median, so that its parts are those of a step without an evaluation."""
    rank = with_evaluations(with_steps(tmp_path / "run.ledger", 1, 1, 1), evaluating, most_spans)
    work, note = present(read_work(rank)), work_note(rank, -1)
    assert ("evaluation" in work.phase) is (left_out is None)
    if left_out is None:
        assert note is None
    else:
        assert note is not None
        assert note.startswith(f"Times by module leave step {left_out} out: its work with an evaluation took ")


@pytest.mark.parametrize("overlap", [True, False])
def test_no_step_is_left_out_if_the_times_are_of_all_threads(overlap: bool, tmp_path: Path) -> None:
    """The other threads work at any time, and so in some steps more than in others."""
    found = with_steps(tmp_path / "run.ledger", *((20, 1, 1) if overlap else (1,)))  # the same spans several times over
    manifest = replace(found.manifest, times_of_all_threads=True)
    rank = KeptRank(found.number, found.directory, manifest, tables={name: found.table(name) for name in TABLES})
    work, before = present(read_work(rank)), present(read_work(found))
    assert (work.steps, before.steps) == ((3, 2) if overlap else (1, 1))
    assert (OF_ALL_THREADS in summarize(rank, -1).notes) is overlap
