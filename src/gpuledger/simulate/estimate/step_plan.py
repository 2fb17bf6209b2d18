"""Decide after which step an estimate ends: a fixed number, or until the largest of changing inputs was seen."""

from __future__ import annotations

import weakref
from typing import Any

from torch.utils.data import DataLoader

from gpuledger.collect.steps.step_counter import StepCounter
from gpuledger.simulate.estimate.growth import GrowthWatch, StepGrowth, describe_growth
from gpuledger.simulate.estimate.steps.batches_ahead import Batches, BatchesAhead, count_of
from gpuledger.simulate.estimate.waiting_optimizers import WaitingOptimizers
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.rest.longer import LongerLoops
from gpuledger.simulate.rest.loop_lengths import LoopLengths
from gpuledger.simulate.rest.rest import RestOfProgram

LEAST_STEPS, MOST_STEPS = 3, 24
"""Steps of an estimate with ``--steps auto``: if all are alike, and at most."""
MOST_CALLS, _MOST_REQUESTS = 1000, 20_000
"""Limits of calls of a model without training, such as those of a text generation, and of their requests of memory.

The second one is also that of training steps on batches of different sizes that need no more memory.
"""
_MOST_REQUESTS_TO_END = 5 * _MOST_REQUESTS
"""Requests of calls that keep more and more in a loop, such as caches of keys and values, if it ends within them."""
_QUIET_STEPS = 8
"""Without a data loader, steps after the largest one until no larger one is expected."""
_CHANGED = 1.005
"""Ratio of two peaks above which they differ."""
_VARIED = 1.0005
"""Ratio of two steps' requested bytes above which they differ. Those of steps with equal inputs are equal."""
_REPLACED = 0.25
"""Share of the second step's bytes in requests of sizes that the first one has not made, and the other way around.

Above it, the two steps had inputs of other sizes.
"""

SLOW_LOADER = (
    "A DataLoader takes long, so few of its batches were read ahead. On a faster machine, the estimate can have larger "
    "batches."
)


class StepPlan:
    """Decides after which step a program ends.

    Args:
        steps: Number of steps; None for as many as the program's inputs require.
        device: The GPU. Steps with different inputs request different amounts of memory.
    """

    def __init__(self, steps: int | None, device: SimulatedDevice) -> None:
        self.most = steps or MOST_STEPS
        self.requested: list[int] = []
        """Bytes that each step requested."""
        self._steps = steps
        self._device = device
        self._current: BatchesAhead | None = None
        self._total_bytes = 0
        self._peaks: list[int] = []
        self._growth = GrowthWatch(device)
        self.growth: StepGrowth | None = None
        """How the program still grew at its last step."""
        self.counter: StepCounter | None = None
        """Counts the program's steps."""
        self.has_ended = False
        """Whether a step was the last one."""
        self._waiting = WaitingOptimizers(device)
        self._lengths: LoopLengths | None = None
        self._requests = (0, 0)
        """The requests of memory until the last two steps ended."""
        self._first_differed = False
        """Whether the first step had inputs of other sizes than the second one."""
        self._first_sizes: dict[int, int] = {}
        device.sizes = {}
        self.largest_of: tuple[int, int] | None = None
        """The number of the loader's largest batches that followed, and of those that they were chosen from."""
        self.has_largest = False
        """Whether the batches of a loader differ in size, and a step had the largest one of an epoch."""
        self.settled_step: int | None = None
        """The first call that has not kept more, after several that have. What follows the last of these is in it."""
        self._keeps_more = False
        """Whether the last calls have each kept more."""
        self._last_large: int | None = None
        """The step of the last of the loader's largest batches, once they follow."""
        self._was_slow = False
        """Whether fewer batches of a loader were read ahead because they took long."""

    @property
    def grows(self) -> bool:
        """Return whether the last steps had a higher peak than those before, as with a history or a list of results.

        The second step usually has: the states of the optimizer are new.
        """
        settled = self._peaks[1:][-LEAST_STEPS:]
        return len(settled) > 1 and settled[-1] > settled[0] * _CHANGED

    @property
    def varied(self) -> bool:
        """Return whether steps requested different amounts of memory. The first step requests others in any program."""
        settled = self.requested[1:]
        return bool(settled) and (max(settled) > min(settled) * _VARIED or self._first_differed)

    def is_last(self, seen: int) -> bool:
        """Return whether the program can end now, after ``seen`` steps."""
        total_bytes = self._device.requested_bytes
        self.requested.append(total_bytes - self._total_bytes)
        self._total_bytes = total_bytes
        self._see_sizes(seen)
        self._peaks.append(self._device.counters.peak_allocated_bytes)
        self._device.steps = seen
        self._requests = self._requests[1], self._device.counters.alloc_count
        self._growth.see(seen)
        self._see_calls(seen)
        ends = self._ends_after(seen) if self._last_large is None else self._has_had_largest(seen)
        if ends and self._gives_largest(seen):
            return False
        if ends:
            self.has_ended, self.growth = True, self._growth.found(seen)
            self.has_largest = self._current is not None and self._current.has_given_largest
        return ends

    def _see_calls(self, seen: int) -> None:
        """Note whether calls without training keep more and more, and the first one that no longer does."""
        kept_more = self._keeps_more
        self._keeps_more = self._are_calls and self._growth.is_certain
        if kept_more and not self._keeps_more and not self._growth.is_certain:
            self.settled_step = seen

    def _see_sizes(self, seen: int) -> None:
        """Compare the sizes of the requests of the first two steps. Inputs of other sizes replace many of them.

        In any program, the first step has some that do not follow, and the second one has those of work between steps.
        """
        sizes, self._device.sizes = self._device.sizes or {}, {} if seen == 1 else None
        if seen == 2:
            new_bytes = sum(total for size, total in sizes.items() if size not in self._first_sizes)
            gone_bytes = sum(total for size, total in self._first_sizes.items() if size not in sizes)
            self._first_differed = min(new_bytes, gone_bytes) > _REPLACED * sum(sizes.values())
        self._first_sizes = sizes if seen == 1 else {}

    def see_later(self, seen: int) -> StepGrowth | None:
        """Return steady growth that began after the steps that were needed, when it is first known."""
        self._growth.see(seen)
        found = self._growth.found(seen) if self.growth is None else None
        if found is None or not found.kept_blocks:
            return None
        self.growth = found
        return found

    @property
    def optimizers(self) -> list[str]:
        """Return the lines of the program that made optimizers, as FILE:LINE."""
        return self._waiting.places

    @property
    def longest(self) -> int:
        """Return the largest number of steps or calls that can be simulated."""
        return self.most if self._steps is not None else max(self.most, MOST_CALLS)

    def describe(self, longer: LongerLoops | None = None) -> list[str]:
        """Return sentences on what is missing after the last step: growth, and the state of optimizers.

        Nothing is missing of a program that ended by itself. ``longer`` has the steps that follow from growth.
        """
        if not self.has_ended:
            return []
        growing = [] if self.growth is None else describe_growth(self._device, self.growth, longer)
        slow = [SLOW_LOADER] if self._was_slow else []
        return [*growing, *slow, *self._waiting.describe(self._device.steps)]

    @property
    def _may_reserve_more(self) -> bool:
        """Return whether batches of different sizes may leave more gaps between blocks, and more can be simulated."""
        return self.varied and self._device.counters.alloc_count < _MOST_REQUESTS

    @property
    def _are_calls(self) -> bool:
        """Return whether the steps are calls without training, and more than a few can be simulated."""
        if self.counter is None or self.counter.trained:
            return False
        return self._device.counters.alloc_count < _MOST_REQUESTS or self._grows_to_an_end

    @property
    def _grows_to_an_end(self) -> bool:
        """Return whether each call keeps more, and the loop around the calls ends within some more requests."""
        if self._lengths is None or not self._growth.is_certain:
            return False
        loops, (before, now) = self._lengths.with_steps(self._device.steps), self._requests
        left = loops[0].steps_left if loops else None
        return left is not None and now + left * (now - before) < _MOST_REQUESTS_TO_END

    def _ends_after(self, seen: int) -> bool:
        if self._steps is not None:
            return seen >= self.most
        if seen >= (MOST_CALLS if self._are_calls else self.most):
            return True
        if self._are_calls and self._growth.is_certain:
            return False
        if seen < LEAST_STEPS or self.grows or self._growth.needs_more:
            return False
        if any(self._waiting.waiting()):
            return False
        if self._current is not None and self._current.knows:
            return not self._current.has_larger and not self._may_reserve_more
        settled = self.requested[1:]
        is_quiet = len(settled) - 1 - settled.index(max(settled)) >= _QUIET_STEPS
        return not self.varied or (is_quiet and not self._may_reserve_more)

    def _gives_largest(self, seen: int) -> bool:
        """Return whether the largest of the loader's other batches follow, instead of those that are next."""
        if self._steps is not None or self._last_large is not None or self._current is None:
            return False
        next_batches = self._current.left
        count = self._current.keep_largest(only_if_larger=seen >= self.most)
        if count:
            self._last_large, self.largest_of = seen + count, (count, next_batches)
        return count > 0

    def _has_had_largest(self, seen: int) -> bool:
        """Return whether the largest batches were given, or the program has left their loop."""
        left = self._current is not None and self._current.is_of_largest and self._current.left
        return not left or self._last_large is None or seen >= self._last_large

    def install(self, patches: Patches, rest: RestOfProgram | None = None) -> None:
        """Notice optimizers. Read the sizes of data loaders' next batches, if the number of steps is not fixed.

        Args:
            patches: Restores everything.
            rest: Ends data loaders after the last step.
        """
        self._waiting.install(patches)
        self._lengths = None if rest is None else rest.lengths
        if self._steps is None:
            plain = DataLoader.__iter__
            known: weakref.WeakKeyDictionary[Any, Batches] = weakref.WeakKeyDictionary()

            def batches(loader: Any) -> BatchesAhead:
                read = known.setdefault(loader, Batches())
                return BatchesAhead(plain(loader), self._gave, rest, read, count_of(loader))

            patches.put(DataLoader, "__iter__", batches)

    def _gave(self, batches: BatchesAhead) -> None:
        self._current = batches
        self._was_slow |= batches.was_slow
