"""Read the batches of a data loader ahead: their sizes tell which step of a program has the largest one."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from gpuledger.simulate.gpu.shortcuts import tensors_in
from gpuledger.simulate.rest.rest import QuietLoader, RestOfProgram

_CHANGED = 1.005
"""Ratio of two batches' sizes above which they differ."""
_AHEAD_BATCHES, _AHEAD_BYTES = 24, 512 << 20
"""Limits of batches that are read ahead: number and bytes."""
_MORE_BATCHES = 2_000
"""The first of these limits if the first batches differ in size."""
_PATIENCE_S = 30.0
"""Time on the clock that a data loader may take for batches that are read ahead.

Nearly all loaders reach the other limits first, so that an estimate does not depend on the speed of the machine.
"""
_LARGEST_BATCHES, _LARGE = 8, 0.9
"""Later batches of a data loader that follow the first ones: at most that many, at least so large as a share of the
largest one. Batches that are nearly as large as the largest one leave the gaps into which others do not fit.
"""
_ALIKE_BATCHES, _ALIKE_BYTES = 3, 1 << 20
"""If these first batches of a data loader are alike, and have this size, one is given again in the rest."""


class Batches:
    """What is known of a data loader's batches."""

    def __init__(self) -> None:
        self._last: Any = None
        self._kinds: set[Any] = set()
        self._read = 0
        self._read_s = 0.0

    @property
    def are_slow(self) -> bool:
        """Return whether the batches took more time than the limit. Then no others are read ahead."""
        return self._read_s > _PATIENCE_S

    def read(self, batches: Iterator[Any]) -> Any:
        """Return the next batch, and note what it is like."""
        before_s = time.monotonic()
        self._last = next(batches)
        self._read_s += time.monotonic() - before_s
        self._read += 1
        tensors = list(tensors_in(self._last))
        is_real = bool(tensors) and not any(isinstance(tensor, FakeTensor) for tensor in tensors)
        self._kinds.add(tuple((tensor.shape, tensor.dtype) for tensor in tensors) if is_real else None)
        return self._last

    def again(self) -> Any:
        """Return a batch for another one; None if the others can differ, or are small and so read fast."""
        is_alike = self._read >= _ALIKE_BATCHES and len(self._kinds) == 1 and None not in self._kinds
        return self._last if is_alike and (self.are_slow or size_of(self._last) >= _ALIKE_BYTES) else None


def size_of(batch: Any) -> int:
    """Return the bytes of a batch's tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(batch))


def count_of(loader: Any) -> int | None:
    """Return the number of batches of a data loader; None if it is not known, as of an iterable."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


class BatchesAhead:
    """Iterates over a data loader, in its order, and knows the sizes of the next batches."""

    def __init__(
        self,
        batches: Iterator[Any],
        gave: Callable[[BatchesAhead], None],
        rest: RestOfProgram | None,
        known: Batches,
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
        self._largest = self._given = 0
        self._are_unsized = False
        """Whether a batch has no size that is known, or is on the GPU."""
        self._are_all = False
        """Whether all batches were read ahead."""
        self._smallest = math.inf
        self.is_of_largest = False
        """Whether only the largest of its batches are left."""
        self.was_slow = False
        """Whether fewer batches were read ahead because they took long."""

    @property
    def has_larger(self) -> bool:
        """Return whether a larger batch than any until now is one of the first ones."""
        first = itertools.islice(self._ahead, max(_AHEAD_BATCHES - self._given, 0))
        return any(size > self._largest * _CHANGED for _, size in first)

    @property
    def has_given_largest(self) -> bool:
        """Return whether all batches were read, they differ in size, and none that is left is larger."""
        left = max((size for _, size in self._ahead), default=0)
        return self._are_all and self._smallest * _CHANGED < self._largest and left <= self._largest * _CHANGED

    @property
    def left(self) -> int:
        """Return the number of batches that were read ahead."""
        return len(self._ahead)

    def keep_largest(self, *, only_if_larger: bool) -> int:
        """Leave out the batches that were read ahead, except the largest ones, and return the number of these.

        Args:
            only_if_larger: Whether they are left out only if a batch is larger than any until now.
        """
        before, sizes = list(self._ahead), [size for _, size in self._ahead]
        if not self.knows or (only_if_larger and max(sizes, default=0) <= self._largest * _CHANGED):
            return 0
        largest = max([self._largest, *sizes])
        order = sorted(range(len(sizes)), key=lambda place: -sizes[place])[:_LARGEST_BATCHES]
        kept = [before[place] for place in sorted(order) if sizes[place] >= _LARGE * largest]
        if min(sizes, default=largest) * _CHANGED >= largest or not kept:
            return 0
        self._ahead = deque(kept)
        self.is_of_largest = True
        return len(kept)

    def __iter__(self) -> BatchesAhead:
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
        self._largest, self._smallest = max(self._largest, size), min(self._smallest, size)
        self._given += 1
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
        return batch, size_of(batch)

    def _read_ahead(self) -> None:
        """Read batches until a limit: the first ones, and the others if these differ in size."""
        if self._reads_until(_AHEAD_BATCHES):
            sizes = {size for _, size in self._ahead}
            if len(sizes) > 1 and (self._rest is None or not self._rest.began):
                self._reads_until(_MORE_BATCHES)
        self.knows = len(self._ahead) > 1 and not self._are_unsized

    def _reads_until(self, count: int) -> bool:
        """Read batches until a number of them, and return whether there may be more.

        A batch that is on the GPU is not kept: it would change the estimate.
        """
        total_bytes = sum(size for _, size in self._ahead)
        while len(self._ahead) < count and total_bytes < _AHEAD_BYTES:
            if self._known.are_slow:
                self.was_slow = True
                return False
            try:
                self._ahead.append(self._read())
            except StopIteration:
                self._are_all = True
                return False
            except Exception as error:
                self._error = error  # raised when the program gets there
                return False
            batch, size = self._ahead[-1]
            if not size or any(isinstance(tensor, FakeTensor) for tensor in tensors_in(batch)):
                self._are_unsized = True
                return False
            total_bytes += size
        return True
