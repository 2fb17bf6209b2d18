"""Simulate the rest of a program after the steps that were needed, with loops that end early.

Evaluations, samples, later epochs and stages can need more memory than the first steps. A loop with training steps ends
once an iteration needs no more memory than those before, and its periodic work was done. What follows it is simulated
as it is, up to a limit. It ends before the program would write files or start other programs, because nothing was
computed.
"""

from __future__ import annotations

import io
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.rest.ending import StepsDone
from gpuledger.simulate.rest.error_handlers import expects_the_end
from gpuledger.simulate.rest.later import LaterWork
from gpuledger.simulate.rest.longer import GrowingLoops, GrowthSeen, LongerLoops, SteadyGrowth
from gpuledger.simulate.rest.loop_lengths import LoopLengths
from gpuledger.simulate.rest.periodic import PeriodicWork
from gpuledger.simulate.rest.side_effects import guard_against_effects

MOST_LATER_STEPS = 96
"""Steps that are simulated after those that were needed."""
_LEAST_REQUESTS, _LEAST_CPU_S = 40_000, 20.0
"""The rest may request as much memory, and take as much time, as the program did until then, and at least this."""
_WALL_RATIO = 3
"""The rest may take this much more time on the clock, as it can wait: for a server, a key or another thread."""
_GRACE_S = 1.0
"""Time after which a signal ends what asks neither for memory nor whether a loop ends."""
_MORE = 1.005
"""Ratio of two peaks above which an iteration needed more memory."""
_QUIET_STAGES = 3
"""Iterations of a loop around a loop with steps that need no more memory than those before, after which it ends."""
_FEW_ITERATIONS = 16
"""Iterations that a loop may have left to go on because each keeps more, so that a later one may need more memory."""
_QUIET_BATCHES = 2
"""Batches of a data loader that need no more memory than those before, after which it ends."""
_LONG = "waits or takes long"


@dataclass
class _Loop:
    """One activation of a loop.

    Attributes:
        steps: Steps before it.
        peak_bytes: The peak at its last iteration; None before the rest.
        ended: Loops that were ended until its last iteration.
        quiet: Iterations since the peak was raised.
        kept_bytes: What was allocated before its last iteration; None before the first.
    """

    steps: int
    peak_bytes: int | None
    ended: int
    quiet: int = 0
    kept_bytes: int | None = None


class RestOfProgram:
    """Ends loops and the program after the steps that were needed.

    Args:
        device: The GPU.
        own_place: Returns the program's line for frames (path and line), the outermost first.
        is_own: Returns whether a path is that of a file of the program.
        kept: Directory in which files may be written.
        watch_growth: Returns what looks at the memory that iterations of a loop keep, given its place; by default, no
            loop is looked at.
    """

    def __init__(
        self,
        device: SimulatedDevice,
        own_place: Callable[[Any], str],
        is_own: Callable[[str], bool],
        kept: str = "",
        watch_growth: Callable[[str], GrowthSeen] | None = None,
    ) -> None:
        self.began = False
        self.is_shortened = False
        """Whether a loop or a data loader ended early, or iterations of a loop were left out."""
        self.notes: list[str] = []
        """Why the rest ended before the program, if that is to be said."""
        self._device = device
        self._own_place = own_place
        self._is_own = is_own
        self._kept = kept
        self._loops: dict[int, _Loop] = {}
        self._ended = 0
        self._later = LaterWork()
        self._periodic = PeriodicWork(lambda: device.steps, self._later.times)
        self.remainder = self._periodic.remainder
        self.compared = self._later.compared
        self.lengths = LoopLengths()
        """The loops that run, and their numbers of iterations."""
        self.longer = LongerLoops(device)
        """Adds the memory of steps that are not simulated."""
        self.growing = None if watch_growth is None else GrowingLoops(watch_growth)
        """Finds loops with steps of which each iteration keeps memory."""
        self._innermost = 0
        """The loop that asked last whether it ends."""
        self._steps_before = 0
        self._most_requests = 0
        self._until_s = 0.0
        self._until_wall_s = 0.0
        self._before_alarm: Any = None
        """The handler of the signal, if it was replaced."""

    def begin(self, seen: int, growth: SteadyGrowth | None = None) -> None:
        """Start with the rest, after the last step that was needed, with the growth that the program had until then."""
        if growth is not None:
            self.longer.begin(growth, self.lengths.with_steps(seen))
        counters = self._device.counters
        self.began, self._steps_before = True, seen
        self._most_requests = counters.alloc_count + max(counters.alloc_count, _LEAST_REQUESTS)
        allowed_s = max(time.thread_time(), _LEAST_CPU_S)
        self._until_s = time.thread_time() + allowed_s
        self._until_wall_s = time.monotonic() + _WALL_RATIO * allowed_s
        self._set_alarm(_WALL_RATIO * allowed_s + _GRACE_S)
        self._device.before_request = self._check
        guard_against_effects(self._refuse, self._kept)

    def end(self) -> None:
        """Allow everything again."""
        if self._before_alarm is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before_alarm)
            self._before_alarm = None
        self._device.before_request = None
        guard_against_effects(None)

    def step_ended(self, seen: int, growth: SteadyGrowth | None = None) -> None:
        """Note that a training step ended, and that steps keep memory, when that is known.

        Raises:
            StepsDone: it was the last one. A note says that what follows is not included.
        """
        self._device.steps = seen
        if growth is not None and not self.longer.knows:
            self.longer.begin(growth, self.lengths.with_steps(seen))
        self.longer.step_ended()
        self._steps_before += self._device.decodes  # a call that generates tokens is shortened elsewhere
        if seen - self._steps_before >= MOST_LATER_STEPS:
            self._refuse(f"takes {MOST_LATER_STEPS} more steps")

    def loop_begins(self, loop: int, around: int | None, last_line: int) -> None:
        """Note that a loop of the program begins, the loop around it in the same function, and its last line."""
        if not _is_main():
            return
        self._loops[loop] = _Loop(self._device.steps, self.peak_bytes if self.began else None, self._ended)
        self.lengths.begins(loop, last_line, self._device.steps, around, sys._getframe(1))
        self._periodic.loop_begins(loop)

    def items(self, loop: int, name: str, items: object) -> object:
        """Return what a loop iterates over, with a counter of the given name; "" if nothing is compared with it."""
        self.lengths.has(loop, items)
        if name:
            self._later.loop_begins(loop, name, items)
        return items

    def counted(self, loop: int | None, name: str, value: object, by: object = None) -> object:
        """Return the value of a counter of a loop; of the innermost one if it is None."""
        return self._later.counted(self._innermost if loop is None else loop, name, value, by)

    def read(self, limited: set[str], classes: set[str]) -> None:
        """Note the names of containers that may have a limit, and those of the classes in a file of the program."""
        self.longer.limited.update(limited)
        self.longer.classes.update(classes)

    def leaves(self, name: str, left: object, how: str, right: object) -> object:
        """Return the left side of a comparison that ends the loop of a counter, and note when."""
        until = self._later.left_until(name, left, how, right)
        if until is not None:
            self.lengths.ends_after(*until)
        return left

    @property
    def is_open(self) -> bool:
        """Return whether the innermost loop has more iterations for work that begins later."""
        return self._later.is_open(self._innermost) or self.longer.is_open

    def describe(self) -> list[str]:
        """Return sentences on why the rest ended before the program, and on what it did not reach."""
        missed = list(self._later.missed()) if self.began else []
        said = f"Not simulated: what the program does at {', at '.join(missed)}."
        return [*self.notes, *([said] if missed else [])]

    def loop_ends(self, loop: int) -> bool:
        """Return whether a loop with steps ends before its next iteration, because the last ones needed no more memory.

        The innermost loop around the last step that was needed ends at once, and other such loops after one iteration.
        The loops around them, such as those over epochs and stages, have a few more. Each has one more for its periodic
        work, and some for what it does later. If each iteration keeps so much that the others may exceed the peak, a
        loop goes on until that is certain, and one with few iterations left until its end. Loops of other threads do
        not end early: the main thread may wait for what they do.
        """
        if not _is_main():
            return False
        self._innermost = loop
        self.lengths.iterates(loop, self._device.steps)
        known = self._loops[loop]
        kept_before, known.kept_bytes = known.kept_bytes, self._device.counters.allocated_bytes
        if not self.began:
            return False
        self._check()
        self.longer.iterates(loop, is_last=self.lengths.is_last(loop))
        if known.steps == self._device.steps:
            known.peak_bytes = self.peak_bytes
            return False
        is_around, known.ended = self._ended > known.ended, self._ended
        before, known.peak_bytes = known.peak_bytes, self.peak_bytes
        if is_around and not self._see_growth(loop, sys._getframe(1)):
            known.peak_bytes = self.peak_bytes
        known.quiet = known.quiet + 1 if before is not None and known.peak_bytes <= before * _MORE else 0
        if self.longer.opens(loop):
            known.quiet = _QUIET_STAGES
        ends = not self._ended or known.quiet >= (_QUIET_STAGES if is_around else 1)
        if self._later.is_over(loop):
            ends = True
        elif ends and (self._gives(loop) or self._may_exceed(loop, kept_before)):
            return False
        self._ended += ends
        self.is_shortened |= ends
        return ends

    def _see_growth(self, loop: int, frame: FrameType) -> bool:
        """Return whether it is known from now on that each iteration of a loop around steps keeps memory."""
        if self.growing is None or (self.longer.knows and self.growing.growth is None):
            return False
        growing = self.growing
        place = lambda: self._own_place([(frame.f_code.co_filename, frame.f_lineno)])  # noqa: E731
        found = growing.iterated(loop, place)
        if found is None:
            return False
        self.longer.begin(found, self.lengths.with_iterations(loop), lambda: growing.iterations(loop))
        return True

    def _may_exceed(self, loop: int, kept_before: int | None) -> bool:
        """Return whether the iterations that are left may exceed the peak if each keeps as much as the last one.

        If all steps or iterations keep the same, the memory of those that are not simulated is known. Many that are
        left only count until that is certain.
        """
        left, counters = self.lengths.iterations_left(loop), self._device.counters
        if kept_before is None or left is None or self.longer.knows:
            return False
        grown_bytes = counters.allocated_bytes - kept_before
        if left < _FEW_ITERATIONS:
            return counters.allocated_bytes + (left + 1) * grown_bytes > counters.peak_allocated_bytes * _MORE
        is_unclear = self.growing is not None and self.growing.needs_more(loop)
        return is_unclear and left * grown_bytes > counters.peak_allocated_bytes * (_MORE - 1)

    def _gives(self, loop: int) -> bool:
        """Return whether a loop that would end has another iteration for periodic or later work."""
        if self.longer.goes_on(loop):
            return True
        kept_bytes = self._device.counters.requested_bytes
        if self._periodic.gives(loop, kept_bytes, self.peak_bytes) or self._later.goes_on(loop):
            return True
        jumps = self._later.jumps(loop)
        if jumps:
            self.is_shortened = True
            self._periodic.skipped()
        return jumps

    def writer_called(self, function: Any) -> Any:
        """Return a function that may write, as its name says. In the rest, one of a library ends the program instead.

        Functions of the program are simulated themselves, ``torch.save`` writes no file of the program's, and
        ``open`` is noticed anyway. What is written to open files stays, as in the steps before.
        """
        if self.began and not self._writes_nothing(function):
            self._refuse(f"calls {getattr(function, '__name__', 'a function that may write')}")
        return function

    def _writes_nothing(self, function: Any) -> bool:
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        module = sys.modules.get(str(getattr(function, "__module__", "")))
        file = getattr(module, "__file__", None) if code is None else code.co_filename
        home = str(getattr(function, "__module__", "")).partition(".")[0]
        is_noticed = function is open or function is torch.save or home in ("builtins", "pathlib")
        is_of_stream = isinstance(getattr(function, "__self__", None), io.IOBase)
        return is_noticed or is_of_stream or self._is_own(file or "")

    @property
    def peak_bytes(self) -> int:
        """Return the peak until now, without what each step is known to keep."""
        return self._device.counters.peak_allocated_bytes - self.longer.grown_bytes

    def failed(self, error: BaseException) -> None:
        """Note that the program failed after the needed steps. Values and shortened loops can be the reason."""
        if isinstance(error, SystemExit):
            return
        frames = traceback.extract_tb(error.__traceback__)
        place = self._own_place((frame.filename, frame.lineno or 0) for frame in frames)
        lines = str(error).strip().splitlines()
        what = f"{type(error).__name__}{f': {lines[0]}' if lines else ''}"
        self.notes.append(f"{place or 'The program'}: after the simulated steps, {what}. What follows is not included.")

    def _refuse(self, what: str) -> None:
        frames = traceback.extract_stack(sys._getframe(1))
        place = self._own_place((frame.filename, frame.lineno or 0) for frame in frames)
        said = f"{place or 'The program'}: the simulation ended where the program {what}. What follows is not included."
        if not self.notes:  # what the program does while it ends is no other reason
            self.notes.append(said)
        raise StepsDone

    def _set_alarm(self, seconds: float) -> None:
        """End the rest after some time on the clock, unless the program uses that signal itself."""
        is_free = signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and not signal.getitimer(signal.ITIMER_REAL)[0]
        if _is_main() and is_free:
            self._before_alarm = signal.signal(signal.SIGALRM, lambda *_: self._refuse(_LONG))
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def _check(self) -> None:
        """Raise an exception if the rest has taken long enough."""
        if time.monotonic() > self._until_wall_s:
            self._refuse(_LONG)
        if self._device.counters.alloc_count > self._most_requests or time.thread_time() > self._until_s:
            self._refuse(_LONG)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


class QuietLoader:
    """Decides whether a data loader has given enough batches in the rest of a program."""

    def __init__(self, rest: RestOfProgram) -> None:
        self._rest = rest
        self._quiet = 0
        self._peak_bytes = 0

    def ends(self, caller: FrameType) -> bool:
        """Return whether a loop gets no further batch: some needed no more memory than those before.

        Args:
            caller: Asks for the next batch. It has to know what to do without one.
        """
        if not self._rest.began or self._rest.is_open:
            return False
        peak_bytes = self._rest.peak_bytes
        self._quiet = 0 if peak_bytes > self._peak_bytes * _MORE else self._quiet + 1
        self._peak_bytes = peak_bytes
        ends = self._quiet >= _QUIET_BATCHES and expects_the_end(caller)
        self._rest.is_shortened |= ends
        return ends
