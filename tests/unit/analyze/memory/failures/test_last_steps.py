"""The counters of the last steps before an out-of-memory error: on the terminal, in the report and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from failing_allocator import FACTS, MIB, Recorded, card, snapshot

from gpuledger.analyze.memory.failures.last_steps import StepMemory
from gpuledger.analyze.memory.failures.oom import explain_oom
from gpuledger.analyze.memory.growth import find_growth
from gpuledger.cli.main import main
from gpuledger.model.journal.step_memory import HOST_UNIT_BYTES, UNIT_BYTES
from gpuledger.report.html.sections.failures import _failure as drawn_failure
from gpuledger.report.json.document import oom_document
from gpuledger.report.text.oom_text import last_steps_table

__all__ = ["card"]

pytestmark = pytest.mark.torch

STEP = 812
"""The step that ran out of memory."""
LIVE = 79 * 1024 * MIB


def run_with_steps(directory: Path, facts: dict[str, object]) -> Recorded:
    """Return a run of two GPUs with counters of 12 steps, of which the last two end after the error was caught."""
    recorded = Recorded(directory)
    for step in range(STEP - 10, STEP + 2):
        for device in (0, 1):
            recorded.journal.part.add(
                "step_memory",
                device_idx=device,
                step=step,
                end_ms=step,
                allocated=(step + device) * MIB // UNIT_BYTES,
                reserved=2 * step * MIB // UNIT_BYTES,
                peak=(step + 5) * MIB // UNIT_BYTES,
                blocks=1000 + step,
                allocations=0,
                retries=step % 2,
                host=3 * step * MIB // HOST_UNIT_BYTES,
            )
    recorded.failures.happened({**FACTS, **facts}, STEP)
    return recorded


def test_the_last_steps_that_had_ended_are_shown(card: Callable[..., None], tmp_path: Path) -> None:
    card(snapshot([LIVE], []), LIVE)
    recorded = run_with_steps(tmp_path, {"tried_bytes": 300 * MIB})
    rank = recorded.rank()
    (failure,) = explain_oom(rank)
    assert [one.step for one in failure.last_steps] == [807, 808, 809, 810, 811]
    assert failure.last_steps[-1] == StepMemory(811, 811 * MIB, 816 * MIB, 1622 * MIB, 1811, 1)
    titles = ["step", "allocated, MiB", "highest so far", "reserved", "blocks", "retries"]
    assert last_steps_table(failure)[0] == titles
    lines = CliRunner().invoke(main, ["show", str(recorded.directory)]).output.splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith("Last steps")]
    assert lines[place].split(maxsplit=2)[2].split("  ") == titles
    assert lines[place + 5].split() == ["811", "811.0", "816.0", "1,622.0", "1,811", "1"]
    assert drawn_failure(rank, failure)["last_steps"] == last_steps_table(failure)
    last = json.loads(json.dumps(oom_document(0, failure)))["last_steps"][-1]
    assert last == {
        **{"step": 811, "allocated_bytes": 811 * MIB, "peak_allocated_bytes": 816 * MIB},
        **{"reserved_bytes": 1622 * MIB, "blocks": 1811, "retries": 1, "host_bytes": None},
    }


@pytest.mark.parametrize(("step_bytes", "kind"), [(4 * 1024 * MIB, "growth"), (0, "full")])
def test_a_short_program_whose_memory_grew_is_told_so(
    card: Callable[..., None], tmp_path: Path, step_bytes: int, kind: str
) -> None:
    """A leak that fills the GPU in 14 steps, and the same with rows of the steps after the error was caught."""
    card(snapshot([LIVE], []), LIVE)
    recorded = Recorded(tmp_path)
    for step in range(1, 19):
        grown = min(step, 14) * step_bytes
        columns = {"allocated": (20 * 1024 * MIB + grown) // UNIT_BYTES, "blocks": 100 + (step if step_bytes else 0)}
        rest = {"reserved": 0, "peak": 0, "allocations": 0, "retries": 0, "host": 0, "end_ms": step}
        recorded.journal.part.add("step_memory", device_idx=0, step=step, **columns, **rest)
    recorded.failures.happened({**FACTS, "tried_bytes": 300 * MIB}, 15)
    (failure,) = explain_oom(recorded.rank())
    assert failure.cause is not None
    assert failure.cause.kind == kind
    if kind == "growth":
        assert failure.cause.sentence == "Memory has grown by 4.0 GiB per step since step 1, 52.0 GiB in total"


def test_growth_without_known_peaks_has_no_end(card: Callable[..., None], tmp_path: Path) -> None:
    card(snapshot([LIVE], []), LIVE)
    recorded = Recorded(tmp_path)
    rest = {"reserved": 0, "peak": -1, "allocations": 0, "retries": 0, "host": 0, "end_ms": 0}
    for step in range(1, 15):
        columns = {"allocated": step * 4 * 1024 * MIB // UNIT_BYTES, "blocks": 100 + step}
        recorded.journal.part.add("step_memory", device_idx=0, step=step, **columns, **rest)
    (growth,) = find_growth(recorded.rank(), failed_step=15)
    assert growth.steps_left is None


def test_a_narrow_terminal_has_the_table_below_its_label(card: Callable[..., None], tmp_path: Path) -> None:
    card(snapshot([LIVE], []), LIVE)
    recorded = run_with_steps(tmp_path, {"tried_bytes": 300 * MIB})
    recorded.journal.write()
    shown = CliRunner().invoke(main, ["show", str(recorded.directory)], env={"COLUMNS": "40"})
    lines = shown.output.splitlines()
    place = lines.index("Last steps")
    assert lines[place + 1].split("  ")[1:3] == ["step", "allocated, MiB"]
    assert max(map(len, lines[place : place + 7])) <= 40


def test_an_error_of_the_host_shows_its_memory(card: Callable[..., None], tmp_path: Path) -> None:
    facts = {"device_idx": -1, "library": "PyTorch", "tried_bytes": 300 * MIB, "frames": [["train.py", 7, "<module>"]]}
    recorded = run_with_steps(tmp_path, facts)
    (failure,) = explain_oom(recorded.rank())
    assert failure.last_steps[-1] == StepMemory(811, host_bytes=3 * 811 * MIB)
    assert last_steps_table(failure)[0] == ["step", "host memory, MiB"]


def test_an_error_in_the_first_step_has_no_table(card: Callable[..., None], tmp_path: Path) -> None:
    card(snapshot([LIVE], []), LIVE)
    recorded = Recorded(tmp_path)
    recorded.failures.happened({**FACTS, "tried_bytes": 300 * MIB}, 1)
    (failure,) = explain_oom(recorded.rank())
    assert failure.last_steps == ()
    assert "Last steps" not in CliRunner().invoke(main, ["show", str(recorded.directory)]).output


def test_counters_that_are_not_known_have_no_column(card: Callable[..., None], tmp_path: Path) -> None:
    card(snapshot([LIVE], []), LIVE)
    recorded = run_with_steps(tmp_path, {"tried_bytes": 300 * MIB})
    (failure,) = explain_oom(recorded.rank())
    unknown = replace(failure, last_steps=tuple(StepMemory(one.step, MIB) for one in failure.last_steps))
    assert last_steps_table(unknown) == (["step", "allocated, MiB"], [[str(step), "1.0"] for step in range(807, 812)])
