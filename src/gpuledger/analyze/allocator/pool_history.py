"""Replays of one pool of the allocator. Without a limit of memory, requests of one pool do not change the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.model.journal.journal import Action

Event = tuple[float, int, int, int, int]
"""Position in a program's requests, action, address, requested bytes and stream."""


@dataclass(frozen=True)
class PoolHistory:
    """What requests of one pool need.

    Attributes:
        reserved_bytes: Bytes of its segments after all requests, which are never released.
        positions: float64[n], increasing: those of its requests and frees.
        allocated_bytes: int64[n]: after each of these.
    """

    reserved_bytes: int
    positions: NDArray[np.float64]
    allocated_bytes: NDArray[np.int64]


def replay_pool(events: Sequence[Event], settings: AllocatorSettings) -> PoolHistory:
    """Return what the requests and frees of one pool need on a GPU with enough memory."""
    allocator = CachingAllocator(settings)
    counters, places = allocator.counters, dict[int, int]()
    allocated_bytes: list[int] = []
    for _, action, address, size_bytes, stream in events:
        if action == Action.ALLOC:
            places[address] = allocator.malloc(size_bytes, stream)
        else:
            allocator.free(places.pop(address))
        allocated_bytes.append(counters.allocated_bytes)
    positions = np.asarray([event[0] for event in events], np.float64)
    return PoolHistory(counters.peak_reserved_bytes, positions, np.asarray(allocated_bytes, np.int64))


def peaks_of_pools(one: PoolHistory, other: PoolHistory) -> tuple[int, int]:
    """Return the peaks of allocated and reserved bytes of a program with these two pools."""
    highest = max(_highest_beside(one, other), _highest_beside(other, one))
    return highest, one.reserved_bytes + other.reserved_bytes


def _highest_beside(one: PoolHistory, other: PoolHistory) -> int:
    """Return the most that is allocated in both pools after a request of one of them."""
    before = np.searchsorted(other.positions, one.positions)
    beside = np.concatenate(([0], other.allocated_bytes))[before]
    return int((one.allocated_bytes + beside).max(initial=0))
