"""An optimizer that steps first after the recorded steps is noted, with the option that records its training."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.session.late_optimizers import UNKNOWN_PEAK, LateOptimizers

pytestmark = pytest.mark.torch


class Optimizer:
    """Stands for an optimizer."""


@pytest.mark.parametrize("on_card", [False, True])
def test_the_first_one_is_noted_with_the_steps_to_record(on_card: bool) -> None:
    journal = RankJournal(Path, [])
    known, *later = (Optimizer() for _ in range(3))
    late = LateOptimizers(journal, 4)
    late.steps(known, 1)
    late.recording_ended([known], on_card=on_card)
    for step, optimizer in enumerate((known, *later, known), 21):
        late.steps(optimizer, step)
    (note,) = journal.part.notes
    assert note.endswith("Use --steps 22:25 to record the memory of that training by module.")
    assert (UNKNOWN_PEAK in note) != on_card


def test_nothing_is_noted_if_no_training_was_recorded() -> None:
    journal = RankJournal(Path, [])
    late = LateOptimizers(journal, 3)
    late.recording_ended([], on_card=True)
    late.steps(Optimizer(), 5)
    assert journal.part.notes == []
