"""Source lines of kernels in journals of an H200, where modules have no ranges in the step with lines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gpuledger.analyze.posting.activities import own_spans
from gpuledger.model.accounts import PHASES
from gpuledger.model.journal.reading import read_journal

RECORDINGS = Path(__file__).parents[3] / "recordings" / "lines"
LEAST_FRAC = 0.99


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("triton_function", {"forward": {21}, "backward": {21}, "optimizer": {21}}),
        ("serving", {"evaluation": {30}}),
    ],
)
def test_kernels_of_each_phase_have_the_line_that_the_program_called(name: str, lines: dict[str, set[int]]) -> None:
    """``name.txt`` is the program that was recorded. The last frame of a stack is the outermost."""
    journal = read_journal(RECORDINGS / f"{name}.journal")
    spans = own_spans(journal)
    assert spans is not None
    with_line_ns: Counter[str] = Counter()
    all_ns: Counter[str] = Counter()
    found: dict[str, set[int]] = {}
    for phase, stack, began_ns, ended_ns in zip(
        spans.phase.tolist(), spans.stack_id.tolist(), spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True
    ):
        all_ns[PHASES[phase]] += ended_ns - began_ns
        if stack >= 0:
            with_line_ns[PHASES[phase]] += ended_ns - began_ns
            found.setdefault(PHASES[phase], set()).add(journal.stacks[stack][-1][1])
    assert {phase: found[phase] for phase in lines} == lines
    assert all(with_line_ns[phase] >= LEAST_FRAC * all_ns[phase] for phase in lines)
