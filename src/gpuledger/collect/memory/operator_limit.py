"""Limits how many operators are recorded one after the other, so that a run has a size that the program cannot exceed.

An operator costs about 25 µs and 200 bytes of the run. Steps of trainings have far fewer than the limit.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.recorder import FillsUp
from gpuledger.collect.steps.step_counter import StepCounter

MOST_BEFORE_STEPS = 200_000
MOST_IN_STEP = 1_000_000

BEFORE_STEPS = (
    "Memory was recorded for the first {most:,} operators that the program ran without a step. Memory that later "
    "operators allocate is not in this run, so the peak can be higher than shown. Call gpuledger.step() at the end of "
    "each iteration to record the first iterations as steps."
)
IN_STEP = (
    "Memory was recorded for the first {most:,} operators of step {step}. Memory that its later operators allocate is "
    "not in this run, so the peak can be higher than shown. Call gpuledger.step() more often to record shorter steps."
)


class OperatorLimit:
    """Pauses a recorder when it has recorded many operators, until a step begins.

    Args:
        recorder: Says how many operators it has recorded.
        journal: Gets a note about the first pause of each kind.
        steps: The step counter.
        drain: Writes the pending events.
    """

    def __init__(self, recorder: FillsUp, journal: RankJournal, steps: StepCounter, drain: Callable[[], None]) -> None:
        self._recorder = recorder
        self._journal = journal
        self._steps = steps
        self._drain = drain
        self._is_paused = False
        self._has_steps = False
        self._said: set[str] = set()
        recorder.on_limit = self._pause

    @property
    def is_paused(self) -> bool:
        """Return whether operators are not recorded now."""
        return self._is_paused

    def begin(self, *, has_steps: bool) -> None:
        """Count operators from now on: those of a step, or those before the first one."""
        self._has_steps = has_steps
        self._recorder.operators_left = MOST_IN_STEP if has_steps else MOST_BEFORE_STEPS

    def steps_begin(self) -> None:
        """Count the operators of a step from now on, if the program had no steps until now."""
        if not self._has_steps:
            self.step_begins()

    def step_begins(self) -> None:
        """Record again if the recorder is paused. If that is not possible here, the next call tries again."""
        if self._is_paused:
            self._is_paused = not self._recorder.resume(LiveObjects())
        if not self._is_paused:
            self.begin(has_steps=True)

    def _pause(self) -> None:
        note, most = (IN_STEP, MOST_IN_STEP) if self._has_steps else (BEFORE_STEPS, MOST_BEFORE_STEPS)
        if note not in self._said:
            self._said.add(note)
            self._journal.note(note.format(most=most, step=self._steps.seen + 1))
        self._drain()
        self._is_paused = True
        self._recorder.pause()
