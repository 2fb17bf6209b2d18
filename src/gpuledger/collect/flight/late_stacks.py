"""Python stacks of allocations after the recorded steps, where the program can do something new, at a limited cost.

A stack takes some µs, and torch can only take all of them or none. They are taken

- from the end of a step to the next call of a module: there, programs keep outputs, evaluate, or begin something else,
- from ``eval()`` of a model to the next call of a model that trains,
- in a whole step that begins with a larger input than all steps before,
- in a whole step now and then: more often while memory grows.

While steps are measured, they are not taken in whole steps, and the cost has a smaller limit. Where the ring of the
allocator's last events is off, it is on as long as stacks are taken.

The observer of module calls is on as long as they are, so that each of these ends with a call.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import islice
from typing import Any

from torch import nn

from gpuledger.collect.adapter import dynamo, frames, torch_private
from gpuledger.collect.adapter.calls import OutermostCalls
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.instrument import CannotInstrumentError, Observation, is_observed_for_good
from gpuledger.collect.adapter.observer import Observer
from gpuledger.collect.adapter.program_objects import (
    attributes_of,
    known_sizes,
    modules_below,
    tensors_in,
    without_overrides,
)
from gpuledger.collect.adapter.torch_entrances import evaluate, module_call
from gpuledger.collect.flight.stack_budget import StackBudget
from gpuledger.collect.flight.step_counters import DeviceCounters, allocations_of

MOST_BLOCKS = 20_000
"""Number of allocated blocks from which on no stacks are taken: the blocks keep them, up to about 1 KiB each."""
MOST_OF_A_STEP = 4_000
"""Largest number of allocations of a step of which all stacks are taken. The ring keeps those of freed blocks, too."""
_SHORT_NS = 20_000
"""A shorter time is counted as spent itself: reading the allocator's counters takes as long."""
LOOK_NS = 40_000
"""Time of a look at the end of a step and of what follows it. The program's caches have other code in the meantime."""
_CALL_NS = 1_000
"""Time of the observer in a call of a module inside another one, at most."""
_STEPS = 8, 1_000
"""Fewest and most steps from one whole step with stacks to the next one."""
_MORE_OFTEN = 4
_GROWN_FRAC = 1.02
_INPUTS, _INPUT_LEVELS = 16, 3
"""Most tensors of an input that are counted, and how deep in containers."""


class Taken(Enum):
    """When stacks are taken."""

    NEVER = "never"
    BETWEEN = "from the end of a step to the next call of a module"
    EVALUATING = "in an evaluation"
    WHOLE_STEP = "in a whole step"


_KEPT_WITH = {
    Taken.NEVER: None,
    Taken.BETWEEN: "state",  # with live blocks only
    Taken.EVALUATING: "state",
    Taken.WHOLE_STEP: "alloc",  # and with the events of the ring, also of blocks that are freed
}
"""When stacks are taken -> ``context`` of torch's memory history."""


class LateStacks:
    """Switches the stacks of the allocator's history on and off, and with them the ring where it is not kept.

    Args:
        guard: Wraps callbacks from the program.
        ring_entries: Number of events that the ring keeps.
        allocations: Returns the number of allocations on all devices since the process started.
        clock: Returns a time in ns.
    """

    def __init__(
        self,
        guard: Guard,
        ring_entries: int,
        allocations: Callable[[], int],
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.taken = Taken.NEVER
        self.stacks = self.whole_steps = 0
        """Number of stacks that were taken, and of whole steps."""
        self.budget = StackBudget(clock)
        self._guard, self._clock = guard, clock
        self._ring_entries, self._allocations = ring_entries, allocations
        self._stack_ns = 0.0
        self._kept_with: str | None = None
        self._keeps_events = True
        """Whether the ring is on between the stacks, too."""
        self._is_measured = False
        self._since = 0
        """Number of allocations up to which stacks are counted as taken."""
        self._since_ns = 0
        self._counted, self._of_a_step = -1, 0
        """Number of allocations at the end of the last step that was looked at, -1 without one; and those of a step."""
        self._steps = 0
        """Number of steps since then."""
        self._steps_ago, self._seen_bytes = 0, 0
        """Number of steps since the last whole step with stacks, and the highest allocated bytes at the end of one."""
        self._first_bytes = 0
        """Allocated bytes at the end of the first step."""
        self._largest_input = 0
        """The largest number of elements with which the first call of a step began."""
        self._busy = threading.Lock()
        """Acquired without waiting: modules can be called in several threads at once."""
        self._calls = OutermostCalls(guard(self._called), lambda _module: None, guard.absorbs)
        self._sees_calls = self._cannot_watch = False
        self._evaluations: Observation | None = None
        self._evaluated: weakref.ref[nn.Module] | None = None
        self._calls_ns = 0
        """Time of the observer in one call of the model that is evaluated, with the modules inside."""

    def begin(self, *, keeps_events: bool = True, is_measured: bool = False) -> None:
        """Start, or start again after a recording that has replaced the ring, or when one of the two has changed.

        Args:
            keeps_events: Whether the ring is on now and stays on. If not, it is on only while stacks are taken.
            is_measured: Whether the time and the energy of the program's steps are measured.
        """
        self.taken, self._kept_with, self._counted = Taken.NEVER, None, -1
        self._steps = 0
        self._keeps_events = keeps_events
        if is_measured != self._is_measured:
            self.budget = StackBudget(self._clock, is_measured=is_measured)
        self._is_measured = is_measured
        self._stop_watching()
        self._stack_ns = frames.stack_ns()
        if self._evaluations is None and not dynamo.compiled_frames():
            observer = Observer(self._guard(self._evaluation_began), absorbs=self._guard.absorbs)
            try:
                self._evaluations = Observation(evaluate(), observer)
            except CannotInstrumentError:
                return  # evaluations are like other code

    def pause(self) -> None:
        """Take no more stacks until :meth:`begin`, which says anew whether the ring is on."""
        if self.taken is not Taken.NEVER:
            counted = self._allocations()
            self._settle(counted)
            self._take(Taken.NEVER, counted)

    def take_out(self) -> None:
        """Remove the observers. Can be called more than once."""
        self._stop_watching()
        if self._evaluations is not None:
            self._evaluations.remove()
            self._evaluations = None

    def may_look(self) -> bool:
        """Return whether to call :meth:`step_ended` at the end of a short step, too, and count its time as spent.

        Otherwise a short program, which allocates most after its last step, would end without a stack of it.
        """
        if self.budget.left_for_ends_ns() < 0:
            return False
        self.budget.spend(LOOK_NS)
        return True

    def step_ended(self, latest: Sequence[DeviceCounters], steps: int = 1) -> None:
        """Decide of which allocations stacks are taken next.

        Args:
            latest: The counters of each device at the end of the step.
            steps: Number of steps since the last call.
        """
        self._steps += steps
        self._steps_ago += steps
        if self.taken is Taken.NEVER and self._counted >= 0 and self.budget.left_ns() <= 0:
            return
        if not self._busy.acquire(blocking=False):
            return
        try:
            began_ns = self._clock()
            on_cards = [one for one in latest if one.device_idx >= 0]
            counted = allocations_of(on_cards)
            self._settle(counted)
            self._of_a_step = (counted - self._counted) // self._steps if self._counted >= 0 else 0
            self._counted, self._steps = counted, 0
            allocated_bytes = sum(max(one.allocated_bytes, 0) for one in on_cards)
            blocks = sum(max(one.blocks, 0) for one in on_cards)
            self._first_bytes = self._first_bytes or allocated_bytes
            self.budget.is_growing = allocated_bytes > _GROWN_FRAC * self._first_bytes
            self._take(self._next(blocks, allocated_bytes), counted)
            self.budget.spend(self._clock() - began_ns)
        finally:
            self._busy.release()

    def _next(self, blocks: int, allocated_bytes: int) -> Taken:
        left_ns, is_whole = self.budget.left_ns(), self.taken is Taken.WHOLE_STEP
        self._steps_ago = 0 if is_whole else self._steps_ago
        self.whole_steps += is_whole
        if is_whole:
            self._seen_bytes = max(allocated_bytes, self._seen_bytes)
        has_grown = allocated_bytes > _GROWN_FRAC * self._seen_bytes
        if left_ns <= 0 or blocks > MOST_BLOCKS or torch_private.is_in_backward() or not self._can_watch():
            return Taken.NEVER
        if self._has_time_for_a_step(left_ns) and self._steps_ago >= self._period(has_grown=has_grown):
            return Taken.WHOLE_STEP
        return Taken.BETWEEN

    def _has_time_for_a_step(self, left_ns: float) -> bool:
        is_small = 0 < self._of_a_step <= MOST_OF_A_STEP
        return is_small and not self._is_measured and left_ns >= 2 * self._of_a_step * self._stack_ns

    def _period(self, *, has_grown: bool) -> int:
        """Return the number of steps between two whole steps: the ring keeps two of them, more while memory grows."""
        in_ring = self._ring_entries // (2 * self._of_a_step)  # an allocation and its free are two events
        period = min(max(in_ring // 2, _STEPS[0]), _STEPS[1])
        return period // _MORE_OFTEN if has_grown else period

    def _can_watch(self) -> bool:
        """Return whether the observer of calls changes nothing that ``torch.compile`` has compiled."""
        if self._cannot_watch:
            return False
        return not dynamo.compiled_frames() or is_observed_for_good(module_call())

    def _called(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        """End what the call of an outermost module ends."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            began_ns = self._clock()
            if self.taken is Taken.BETWEEN and self._begins_larger_step((args, kwargs)):
                counted = self._allocations()
                self._settle(counted)
                self._take(Taken.WHOLE_STEP, counted)
                self.budget.spend(self._clock() - began_ns)
                return
            if self.taken is Taken.BETWEEN and began_ns - self._since_ns < _SHORT_NS:
                self.budget.spend(began_ns - self._since_ns)
                self._take(Taken.NEVER, self._since)
                self.budget.spend(self._clock() - began_ns)
                return
            counted = self._allocations()
            self._settle(counted)
            self.budget.spend(self._calls_ns if self.taken is Taken.EVALUATING else 0)
            if self._ends():
                self._take(Taken.NEVER, counted)
            self.budget.spend(self._clock() - began_ns)
        finally:
            self._busy.release()

    def _begins_larger_step(self, inputs: object) -> bool:
        """Return whether stacks are taken in the whole step, as its input is larger than those before."""
        with without_overrides():
            tensors = islice(tensors_in(inputs, _INPUT_LEVELS), _INPUTS)
            elements = sum(math.prod(known_sizes(tensor)) for tensor in tensors)
        is_larger = 0 < _GROWN_FRAC * self._largest_input < elements
        self._largest_input = max(self._largest_input, elements)
        return is_larger and self._has_time_for_a_step(self.budget.left_ns())

    def _ends(self) -> bool:
        if self.taken is Taken.EVALUATING:
            module = None if self._evaluated is None else self._evaluated()
            return module is None or bool(attributes_of(module).get("training")) or self.budget.left_ns() <= 0
        if self.taken is Taken.WHOLE_STEP:  # twice as long as the step before, or the program has left its steps
            return self._since - self._counted > 2 * self._of_a_step or self.budget.left_ns() <= 0
        return True

    def _evaluation_began(self, module: nn.Module) -> None:
        if not self._busy.acquire(blocking=False):
            return
        try:
            is_other = self.taken in (Taken.NEVER, Taken.BETWEEN)
            if is_other and self._counted >= 0 and self._can_watch() and self.budget.left_ns() > 0:
                counted = self._allocations()
                self._settle(counted)
                self._evaluated = weakref.ref(module)
                self._calls_ns = _CALL_NS * sum(1 for _ in modules_below(module))
                self._take(Taken.EVALUATING, counted)
        finally:
            self._busy.release()

    def _settle(self, counted: int) -> None:
        """Count the stacks that were taken until now, and their time as spent."""
        if self.taken is not Taken.NEVER:
            stacks = max(counted - self._since, 0)
            self.stacks += stacks
            self.budget.spend(stacks * self._stack_ns)
        self._since, self._since_ns = counted, self._clock()

    def _take(self, taken: Taken, counted: int) -> None:
        """Take stacks from now on as ``taken`` says. Nothing is changed if another recording has begun."""
        if taken is not Taken.NEVER:
            taken = taken if self._watch() else Taken.NEVER
        if not (torch_private.ring_is_on() or (not self._keeps_events and torch_private.is_history_off())):
            taken = Taken.NEVER
        elif _KEPT_WITH[taken] != self._kept_with:
            self._keep_stacks(_KEPT_WITH[taken])
        self.taken, self._since, self._since_ns = taken, counted, self._clock()
        if taken is Taken.NEVER:
            self._stop_watching()

    def _keep_stacks(self, kept_with: str | None) -> None:
        self._kept_with = kept_with
        if self._keeps_events or (kept_with is not None and torch_private.ring_is_on()):
            torch_private.take_ring_stacks(kept_with, self._ring_entries)
        elif kept_with is not None:
            torch_private.start_ring(self._ring_entries, kept_with)
        else:
            torch_private.stop_ring()

    def _watch(self) -> bool:
        """See calls of modules. Returns whether that is possible."""
        if not self._sees_calls:
            try:
                self._calls.install()
            except CannotInstrumentError:
                self._cannot_watch = True
                return False
            self._sees_calls = True
        return True

    def _stop_watching(self) -> None:
        self._calls.remove()
        self._sees_calls = False
