"""Decide after which step an estimate ends: a fixed number, or until the largest of changing inputs was seen."""

from __future__ import annotations

import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.data import DataLoader

from gpuledger.collect.steps.step_counter import StepCounter
from gpuledger.simulate.estimate.growth import GrowthWatch, StepGrowth, describe_growth
from gpuledger.simulate.estimate.waiting_optimizers import WaitingOptimizers
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.gpu.shortcuts import tensors_in
from gpuledger.simulate.rest.longer import LongerLoops
from gpuledger.simulate.rest.loop_lengths import LoopLengths
from gpuledger.simulate.rest.rest import QuietLoader, RestOfProgram

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
"""Ratio of two peaks, or of two batches' sizes, above which they differ."""
_VARIED = 1.0005
"""Ratio of two steps' requested bytes above which they differ. Those of steps with equal inputs are equal."""
_AHEAD_BATCHES, _AHEAD_S, _AHEAD_BYTES = MOST_STEPS, 1.0, 512 << 20
"""Limits of batches that are read ahead: number, seconds and bytes."""
_ALIKE_BATCHES, _SLOW_S = 3, 0.05
"""If these first batches of a data loader are alike, and take this CPU time each, one is given again in the rest."""


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
        self._current: _BatchesAhead | None = None
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

    @property
    def grows(self) -> bool:
        """Return whether the last steps had a higher peak than those before, as with a history or a list of results.

        The second step usually has: the states of the optimizer are new.
        """
        settled = self._peaks[1:][-LEAST_STEPS:]
        return len(settled) > 1 and settled[-1] > settled[0] * _CHANGED

    @property
    def varied(self) -> bool:
        """Return whether steps requested different amounts of memory. The first step differs in any program."""
        settled = self.requested[1:]
        return bool(settled) and max(settled) > min(settled) * _VARIED

    def is_last(self, seen: int) -> bool:
        """Return whether the program can end now, after ``seen`` steps."""
        total_bytes = self._device.requested_bytes
        self.requested.append(total_bytes - self._total_bytes)
        self._total_bytes = total_bytes
        self._peaks.append(self._device.counters.peak_allocated_bytes)
        self._device.steps = seen
        self._requests = self._requests[1], self._device.counters.alloc_count
        self._growth.see(seen)
        ends = self._ends_after(seen)
        if ends:
            self.has_ended, self.growth = True, self._growth.found(seen)
        return ends

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
        return [*growing, *self._waiting.describe(self._device.steps)]

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
        return not self.varied or len(settled) - 1 - settled.index(max(settled)) >= _QUIET_STEPS

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
            known: weakref.WeakKeyDictionary[Any, _Batches] = weakref.WeakKeyDictionary()

            def batches(loader: Any) -> _BatchesAhead:
                read = known.setdefault(loader, _Batches())
                return _BatchesAhead(plain(loader), self._gave, rest, read, _count_of(loader))

            patches.put(DataLoader, "__iter__", batches)

    def _gave(self, batches: _BatchesAhead) -> None:
        self._current = batches


class _Batches:
    """What is known of a data loader's batches."""

    def __init__(self) -> None:
        self._last: Any = None
        self._kinds: set[Any] = set()
        self._read = 0
        self._read_s = 0.0

    def read(self, batches: Iterator[Any]) -> Any:
        """Return the next batch, and note what it is like."""
        before_s = time.thread_time()
        self._last = next(batches)
        self._read_s += time.thread_time() - before_s
        self._read += 1
        tensors = list(tensors_in(self._last))
        is_real = bool(tensors) and not any(isinstance(tensor, FakeTensor) for tensor in tensors)
        self._kinds.add(tuple((tensor.shape, tensor.dtype) for tensor in tensors) if is_real else None)
        return self._last

    def again(self) -> Any:
        """Return a batch for another one; None if the others can differ, or are read fast."""
        is_alike = self._read >= _ALIKE_BATCHES and len(self._kinds) == 1 and None not in self._kinds
        return self._last if is_alike and self._read_s > _SLOW_S * self._read else None


def _count_of(loader: Any) -> int | None:
    """Return the number of batches of a data loader; None if it is not known, as of an iterable."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


class _BatchesAhead:
    """Iterates over a data loader, in its order, and knows the sizes of the next batches."""

    def __init__(
        self,
        batches: Iterator[Any],
        gave: Callable[[_BatchesAhead], None],
        rest: RestOfProgram | None,
        known: _Batches,
        count: int | None,
    ) -> None:
        self.knows = False
        self._batches = batches
        self._known, self._count = known, count
        self._rest = rest
        self._read_count = 0
        self._gave = gave
        self._quiet = None if rest is None else QuietLoader(rest)
        self._ahead: deque[tuple[Any, int]] = deque()
        self._began = False
        self._error: Exception | None = None
        self._largest = 0

    @property
    def has_larger(self) -> bool:
        """Return whether a larger batch follows than any until now."""
        return any(size > self._largest * _CHANGED for _, size in self._ahead)

    def __iter__(self) -> _BatchesAhead:
        return self

    def __next__(self) -> Any:
        if not self._began:
            self._began = True
            self._read_ahead()
        if self._quiet is not None and not self.has_larger and self._quiet.ends(sys._getframe(1)):
            raise StopIteration
        if not self._ahead and self._error is not None:
            error, self._error = self._error, None
            raise error
        batch, size = self._ahead.popleft() if self._ahead else self._read()
        self._largest = max(self._largest, size)
        self._gave(self)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def _read(self) -> tuple[Any, int]:
        is_rest = self._rest is not None and self._rest.began and self._count is not None
        batch = self._known.again() if is_rest else None
        if batch is None:
            batch = self._known.read(self._batches)
        elif self._read_count == self._count:
            raise StopIteration
        self._read_count += 1
        return batch, sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(batch))

    def _read_ahead(self) -> None:
        """Read batches until a limit. A batch that is on the GPU is not kept: it would change the estimate."""
        deadline_s, total_bytes = time.monotonic() + _AHEAD_S, 0
        while len(self._ahead) < _AHEAD_BATCHES and total_bytes < _AHEAD_BYTES and time.monotonic() < deadline_s:
            try:
                self._ahead.append(self._read())
            except StopIteration:
                break
            except Exception as error:
                self._error = error  # raised when the program gets there
                break
            batch, size = self._ahead[-1]
            if not size or any(isinstance(tensor, FakeTensor) for tensor in tensors_in(batch)):
                return
            total_bytes += size
        self.knows = len(self._ahead) > 1
