"""Notes an optimizer that takes its first step after the recorded steps, as that of a further model does."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.collect.adapter.held_tensors import WeakIdentitySet
from gpuledger.collect.attribution.rank_journal import RankJournal

LATE_OPTIMIZER = (
    "Another optimizer took its first step in step {first}, after the recorded steps.{peak} Use --steps {first}:{last} "
    "to record the memory of that training by module."
)
UNKNOWN_PEAK = " The peak of the program can be higher than shown."
"""Added for CPU tensors, which have no counter of the peak outside the recorded steps."""


class LateOptimizers:
    """Compares the optimizers of later steps with those of the recorded ones.

    Args:
        journal: Gets the note.
        count: Number of recorded steps.
    """

    def __init__(self, journal: RankJournal, count: int) -> None:
        self._journal, self._count = journal, count
        self._peak = ""
        self._known: WeakIdentitySet | None = None

    def recording_ended(self, optimizers: Iterable[object], *, on_card: bool) -> None:
        """Store the optimizers that took steps until now. If there were none, no training was recorded."""
        self._peak = "" if on_card else UNKNOWN_PEAK
        known = WeakIdentitySet()
        known.update(optimizers)
        self._known = known if list(known) else None

    def steps(self, optimizer: object, step: int) -> None:
        """Note an optimizer that steps for the first time, the first one only."""
        if self._known is not None and optimizer not in self._known:
            self._known = None
            last = step + self._count - 1
            self._journal.note(LATE_OPTIMIZER.format(first=step, last=last, peak=self._peak))
