"""What follows the memory window: undisturbed steps, for the step time, and then the time pass."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.collect import torch_private
from gpuledger.collect.guard import Guard
from gpuledger.collect.rank_journal import RankJournal
from gpuledger.collect.roster import Roster
from gpuledger.collect.settings import RecordSettings
from gpuledger.collect.steps import StepCounter
from gpuledger.collect.time_pass import TimePass
from gpuledger.collect.user_profiler import UserProfiler

UNDISTURBED_STEPS = 10
"""Steps after the window with nothing of ours but a clock; at least so many."""

TIME_STEPS = 2
"""Steps of the time pass."""


class LaterPasses:
    """Told of every step after the window; says when there is nothing more to record.

    Args:
        settings: Which passes are wanted, and where the window ends.
        journal: Where everything is written.
        steps: The counter of steps.
        roster: Numbers for modules.
        guard: Wraps what is called from the program.
        give_up: Ends the recording.
    """

    def __init__(
        self,
        settings: RecordSettings,
        journal: RankJournal,
        steps: StepCounter,
        roster: Roster,
        *,
        guard: Guard,
        give_up: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._steps = steps
        self._give_up = give_up
        self._last_step = 0
        self._time_pass = TimePass(journal, roster)
        wanted = "time" in settings.passes
        self._user_profiler = UserProfiler(guard(self._give_way)) if wanted else None

    @property
    def is_timing(self) -> bool:
        """Return whether the time pass is at work."""
        return self._time_pass.is_open

    def end_step(self) -> bool:
        """A step after the window has ended; return whether it was the last that is of interest."""
        if self._time_pass.is_open:
            if self._steps.seen < self._last_step:
                return False
            self.finish()
            return True
        if self._steps.seen < self._settings.last_step + UNDISTURBED_STEPS:
            return False
        return not self._begin_time_pass()

    def before_optimizer(self) -> None:
        """An optimizer begins its step."""
        if self._time_pass.is_open:
            self._time_pass.enter_optimizer()

    def after_optimizer(self) -> None:
        """An optimizer has ended its step."""
        if self._time_pass.is_open:
            self._time_pass.leave_optimizer()

    def finish(self) -> None:
        """The program ends, or the last step has ended: keep what the time pass saw."""
        if self._time_pass.is_open:
            self._time_pass.end()
            if self._steps.seen < self._last_step:
                self._journal.note("The time pass ended early: the program ended inside it.")

    def take_out(self) -> None:
        """Leave nothing behind; what the time pass saw so far is not kept."""
        self._time_pass.end(keep=False)
        if self._user_profiler is not None:
            self._user_profiler.remove()

    def _begin_time_pass(self) -> bool:
        """Begin the last pass; return False where it is not wanted, or where a profiler of the program's goes first."""
        watch = self._user_profiler
        if watch is None:
            return False
        if watch.seen or torch_private.is_profiling():
            self._journal.note("No time pass: the program uses a profiler of its own, which goes first.")
            return False
        self._last_step = self._steps.seen + TIME_STEPS
        watch.ours_begins()
        self._time_pass.begin()
        watch.ours_ends()
        self._journal.fact(time_steps=[self._steps.seen + 1, self._last_step])
        self._steps.restart_clock()
        return True

    def _give_way(self) -> None:
        """The program makes a profiler while ours is at work: ours ends here, and what it saw is not kept."""
        if self._time_pass.is_open:
            self._time_pass.end(keep=False)
            self._journal.note("No time pass: the program made a profiler of its own, which goes first.")
            self._give_up()
