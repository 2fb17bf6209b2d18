"""Notes an optimizer that takes its first step after the recorded steps, as that of a further model does."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.collect.adapter.held_tensors import WeakIdentitySet
from gpuledger.collect.attribution.rank_journal import RankJournal

LATE_OPTIMIZER = (
    "Another optimizer took its first step in step {step}, after the recorded steps. The peak of the program can be "
    "higher than shown. Use --steps to choose steps of that training."
)


class LateOptimizers:
    """Compares the optimizers of later steps with those of the recorded ones.

    For CPU tensors, which have no counter of the peak outside the recorded steps.

    Args:
        journal: Gets the note.
    """

    def __init__(self, journal: RankJournal) -> None:
        self._journal = journal
        self._known: WeakIdentitySet | None = None

    def recording_ended(self, optimizers: Iterable[object]) -> None:
        """Store the optimizers that took steps until now. If there were none, no training was recorded."""
        known = WeakIdentitySet()
        known.update(optimizers)
        self._known = known if list(known) else None

    def steps(self, optimizer: object, step: int) -> None:
        """Note an optimizer that steps for the first time, the first one only."""
        if self._known is not None and optimizer not in self._known:
            self._known = None
            self._journal.note(LATE_OPTIMIZER.format(step=step))
