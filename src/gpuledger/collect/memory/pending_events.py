"""Events that the recorder has and the journal does not have yet, and the pauses in which they are written."""

from __future__ import annotations

import time

from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.recorder import Recorder

NOTED_NS = 10_000_000
"""Time spent on writing steps that is recorded as one pause. One row per write would be more than the data itself."""

EVENT_BYTES = 1024
"""Host memory per pending event and its stack: about 500 bytes in the allocator, and as much again during the drain."""


class PendingEvents:
    """Counts the recorder's pending events and moves them into the journal.

    Args:
        recorder: The source of the events.
        journal: Where they are written.
    """

    def __init__(self, recorder: Recorder, journal: RankJournal) -> None:
        self._recorder = recorder
        self._journal = journal
        self._drained_events = 0
        self._most_events = 0
        self._kept_ns = self._unnoted_ns = 0
        self._allocations = 0
        self.step_allocations = 0
        """Largest number of allocations in a step. The setup is in the first step, which counts if it is the only one.
        """

    def count(self) -> int:
        """Return the number of pending events."""
        return sum(sum(pair) for pair in self._recorder.counts().values()) - self._drained_events

    def all_allocations(self) -> int:
        """Return the number of allocations since the recorder opened."""
        return sum(made for made, _ in self._recorder.counts().values())

    def opened(self) -> None:
        """Leave out the events from before the recording."""
        self._drained_events += self.count()
        self._allocations = self.all_allocations()

    def step_ended(self, number: int) -> None:
        """Count the allocations of a step that has ended: the ``number``-th of the program."""
        before, self._allocations = self._allocations, self.all_allocations()
        made = self._allocations - before
        self.step_allocations = made if number == 2 else max(self.step_allocations, made)

    def drain(self) -> None:
        """Move pending events into the journal and write it, while the program is paused."""
        started_ns = time.time_ns()
        self._move("drain")
        self._journal.pause("drain", started_ns)
        self._journal.write()

    def keep_step(self) -> None:
        """Write the step, so that it is kept if the process is killed in the next step. That one begins afterwards."""
        started_ns = time.time_ns()
        self._move("step_end")
        if self._unnoted_ns > NOTED_NS:
            self.note_keeping()
        self._journal.append()
        self._kept_ns = started_ns
        self._unnoted_ns += time.time_ns() - started_ns

    def note_keeping(self) -> None:
        """Record the time for which the program was paused between steps. Many short pauses become one row."""
        unnoted_ns, self._unnoted_ns = self._unnoted_ns, 0
        if unnoted_ns:
            self._journal.pause("drain", self._kept_ns, unnoted_ns)

    def note_bytes(self) -> int:
        """Store the largest host memory used by the recorder. Return the number of pending events."""
        waiting = self.count()
        self._most_events = max(self._most_events, waiting)
        self._journal.fact(recorder_bytes=self._most_events * EVENT_BYTES)
        return waiting

    def _move(self, reason: str) -> None:
        waiting = self.note_bytes()
        self._recorder.drain(self._journal.part, reason)
        self._drained_events += waiting
