"""What follows the memory window: undisturbed steps, for energy and step time, and then the time pass."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.collect import torch_private
from gpuledger.collect.energy_pass import STEPS as UNDISTURBED_STEPS
from gpuledger.collect.energy_pass import EnergyPass
from gpuledger.collect.guard import Guard
from gpuledger.collect.rank_journal import RankJournal
from gpuledger.collect.roster import Roster
from gpuledger.collect.settings import RecordSettings
from gpuledger.collect.steps import StepCounter
from gpuledger.collect.time_pass import TimePass
from gpuledger.collect.user_profiler import UserProfiler

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
        see_calls: Has a watch on outermost calls above all that is in (True), or takes it out (False); without it
            steps that are calls are not counted.
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
        see_calls: Callable[[bool], None],
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._steps = steps
        self._give_up = give_up
        self._see_calls = see_calls
        self._last_step = 0
        self._wanted = [name for name in ("energy", "time") if name in settings.passes]
        self._energy_pass = EnergyPass(journal, steps)
        self._time_pass = TimePass(journal, roster)
        self._user_profiler = UserProfiler(guard(self._give_way)) if "time" in self._wanted else None

    @property
    def is_timing(self) -> bool:
        """Return whether the time pass is at work."""
        return self._time_pass.is_open

    def begin(self) -> None:
        """The memory window has closed after the step that has just ended."""
        if "energy" in self._wanted:
            self._wanted.remove("energy")
            self._energy_pass.begin()

    def end_step(self) -> bool:
        """A step after the window has ended; return whether it was the last that is of interest."""
        if self._time_pass.is_open:
            if self._steps.seen < self._last_step:
                return False
            self.finish()
            return True
        if self._energy_pass.is_open:
            if not self._energy_pass.end_step():
                return False
        elif self._steps.seen < self._settings.last_step + UNDISTURBED_STEPS:
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
        """The program ends, or the last step has ended: keep what the passes saw, and say which were not reached."""
        self._energy_pass.finish()
        if self._time_pass.is_open:
            self._see_calls(False)
            self._time_pass.end()
            if self._steps.seen < self._last_step:
                self._journal.note("The time pass ended early: the program ended inside it.")
        wanted, self._wanted = self._wanted, []
        if wanted and self._steps.seen:
            passes = " and no ".join(f"{name} pass" for name in wanted)
            self._journal.note(f"No {passes}: the program ended after step {self._steps.seen}, before it could begin.")

    def take_out(self) -> None:
        """Leave nothing behind; what the passes saw so far is not kept."""
        self._wanted = []
        self._energy_pass.take_out()
        if self._time_pass.is_open:
            self._see_calls(False)
            self._time_pass.end(keep=False)
        if self._user_profiler is not None:
            self._user_profiler.remove()

    def _begin_time_pass(self) -> bool:
        """Begin the last pass; return False where it is not wanted, or where a profiler of the program's goes first."""
        watch = self._user_profiler
        if watch is None:
            return False
        self._wanted.clear()
        if watch.seen or torch_private.is_profiling():
            self._journal.note("No time pass: the program uses a profiler of its own, which goes first.")
            return False
        self._last_step = self._steps.seen + TIME_STEPS
        self._see_calls(False)  # or it would stay below the time pass's ranges
        watch.ours_begins()
        self._time_pass.begin()
        watch.ours_ends()
        self._see_calls(True)
        self._journal.fact(time_steps=[self._steps.seen + 1, self._last_step])
        self._steps.restart_clock()
        return True

    def _give_way(self) -> None:
        """The program makes a profiler while ours is at work: ours ends here, and what it saw is not kept."""
        if self._energy_pass.is_open:
            self._journal.note("The program made a profiler of its own in the energy pass; its cost is in the joules.")
        if self._time_pass.is_open:
            self._see_calls(False)
            self._time_pass.end(keep=False)
            self._journal.note("No time pass: the program made a profiler of its own, which goes first.")
            self._give_up()
