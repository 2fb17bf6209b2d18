"""What the measurements after the memory recording report of themselves."""

from __future__ import annotations

from enum import Enum

from gpuledger.collect.attribution.rank_journal import RankJournal

OWN_PROFILER = "the program uses its own profiler, and only one can run at a time"

USES_GRAPHS = (
    "the program uses CUDA graphs, and CUPTI can break those when it starts and stops; "
    "--passes memory,time measures it anyway"
)

PROFILED_ENERGY = "The program's own profiler ran during the energy measurement, so the energy includes its overhead."


class LaterMeasurement(Enum):
    """What is measured after the memory recording."""

    KERNELS = "kernels, with a profiler"
    STEPS = "the time and the energy of steps"
    NOTHING = "nothing any more"


class Outcomes:
    """Stores one sentence for each measurement that did not run, or not completely.

    Args:
        journal: Where they are stored.
        asked: Whether the user has requested the measurements. If so, the sentences are notes.
    """

    def __init__(self, journal: RankJournal, *, asked: bool) -> None:
        self._journal = journal
        self._asked = asked
        self._left_out: list[str] = []

    def say(self, sentence: str) -> None:
        """Store a sentence."""
        if self._asked:
            self._journal.note(sentence)
            return
        self._left_out.append(sentence)
        self._journal.fact(left_out=self._left_out)
