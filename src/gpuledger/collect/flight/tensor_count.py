"""How many tensors are alive, and how many bytes they keep, without a list of the program's own."""

from __future__ import annotations

import sys
import sysconfig
from typing import ClassVar

import torch

from gpuledger.collect.adapter.other_threads import tracked_objects
from gpuledger.collect.adapter.program_objects import class_name, device_of, grad_fn_of, storage_of, without_overrides
from gpuledger.collect.flight.time_limit import TimeLimit

BUDGET_NS = 50_000_000
"""Longest CPU time of a count at the end of a step."""

_CHECK_EVERY = 512
"""Number of objects between two looks at the clock: some 20 µs, and 1 ms if all of them are tensors."""

_REST_NS = 2_000_000
"""Part of it that is left after the last look at the clock."""

_FREED_FRAC = 0.5
"""Time to free the list of all objects, by the time to make it. Measured: at most 0.36."""
_COUNTS_ARE_EXACT = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""Whether the references to a class are counted exactly; without the GIL, Python defers them."""

MOST_COUNTS = 256
"""Number of counts of which every second one is dropped."""

Key = tuple[int, str]


def referenced_tensors() -> int | None:
    """Return the number of tensors, plus what else refers to their classes, which is much the same at any time.

    Every object refers to its class, so that this is one read for each class. None if Python does not count them.
    """
    return sum(map(sys.getrefcount, _tensor_classes())) if _COUNTS_ARE_EXACT else None


class ReferenceCounts:
    """Numbers of :func:`referenced_tensors` at equal distances: at every step, and at fewer when they become many.

    ``counts`` are a step and the number after it. One read takes some µs.
    """

    def __init__(self) -> None:
        self.counts: list[tuple[int, int]] = []
        self._distance = 1
        self._next = 0

    def step_ended(self, step: int) -> None:
        """Read the number, if the step is one of those."""
        if step < self._next or (references := referenced_tensors()) is None:
            return
        self.counts.append((step, references))
        if len(self.counts) >= MOST_COUNTS:
            self._distance *= 2
            self.counts = self.counts[1::2]
        self._next = step + self._distance


class TensorCount:
    """The live tensors that Python can reach, by kind.

    ``groups`` are ``(device index, name of the autograd node or "leaf") -> [tensors, bytes]``, ``addresses`` those of
    the storages. What only a graph keeps for backward is not among them. Without enough time for all objects of the
    process, both are empty, and ``is_complete`` is False. The list of all objects cannot be interrupted, so it is not
    made if it is expected to take too long.
    """

    listing_ns: ClassVar[float] = 10.0
    """CPU time of a list of all objects, by the number of blocks of memory that Python has: that of the last list.

    Before the first one, the time in programs with many objects.
    """

    def __init__(self) -> None:
        self.groups: dict[Key, list[int]] = {}
        self.addresses: set[int] = set()
        limit = TimeLimit(BUDGET_NS - _REST_NS)
        with without_overrides():
            self.is_complete = self._count(limit)
        if not self.is_complete:
            self.groups.clear()
            self.addresses.clear()
        self.took_ns = limit.used_ns

    def _count(self, limit: TimeLimit) -> bool:
        """Count tensors. Return whether the time was enough for all."""
        blocks = max(sys.getallocatedblocks(), 1)
        if (1 + _FREED_FRAC) * TensorCount.listing_ns * blocks > BUDGET_NS - _REST_NS:
            return False
        plain = torch.Tensor.__torch_dispatch__
        identities = frozenset(map(id, _tensor_classes()))
        before_ns = limit.used_ns
        lists = tracked_objects()
        listed_ns = limit.used_ns - before_ns
        TensorCount.listing_ns = listed_ns / blocks
        limit.shorten(round(_FREED_FRAC * listed_ns))
        for objects, start in ((one, start) for one in lists for start in range(0, len(one), _CHECK_EVERY)):
            if limit.is_over:
                return False
            for one in objects[start : start + _CHECK_EVERY]:
                # a wrapper is left out: the wrapped tensors are found themselves
                if id(type(one)) in identities and type(one).__torch_dispatch__ is plain:
                    self._add(one)
        return True

    def _add(self, tensor: torch.Tensor) -> None:
        try:
            storage = storage_of(tensor)
            address, size = storage.data_ptr(), storage.nbytes()
            device, node = device_of(tensor), grad_fn_of(tensor)
        except (RuntimeError, NotImplementedError):  # without a storage, or a view that was modified in place
            return
        if size and address not in self.addresses:
            self.addresses.add(address)
            index = -1 if device.type == "cpu" else device.index or 0
            group = self.groups.setdefault((index, "leaf" if node is None else class_name(type(node))), [0, 0])
            group[0] += 1
            group[1] += size


def _tensor_classes() -> list[type]:
    kinds: list[type] = [torch.Tensor]
    for kind in kinds:
        kinds += type.__subclasses__(kind)
    return kinds
