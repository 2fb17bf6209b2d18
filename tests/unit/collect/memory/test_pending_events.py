"""The number of allocations in a step, which decides whether a step is short enough for the timing measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.memory.pending_events import PendingEvents


class Counting:
    """A recorder that has made as many allocations as it is told."""

    made = 0

    def counts(self) -> dict[int, tuple[int, int]]:
        return {-1: (self.made, 0)}


@pytest.mark.parametrize(
    ("first", "ends", "most"),
    [(1, [90_000, 90_100, 90_300], 200), (1, [90_000], 90_000), (5, [700, 1000, 1100], 600), (1, [10, 30, 40], 20)],
    ids=["a long setup", "one step", "begun later", "a short setup"],
)
def test_the_setup_counts_only_if_no_other_step_was_recorded(first: int, ends: list[int], most: int) -> None:
    recorder = Counting()
    pending = PendingEvents(recorder, RankJournal(Path, []))  # type: ignore[arg-type]  # counts are all it needs
    recorder.made = 100 if first > 1 else 0
    pending.opened()
    for number, made in enumerate(ends, first):
        recorder.made = made
        pending.step_ended(number)
    assert pending.step_allocations == most
