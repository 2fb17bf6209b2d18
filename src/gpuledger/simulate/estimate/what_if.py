"""Replay a run's requests with other settings of the caching allocator, ranked by reserved bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuledger.analyze.allocator.alloc_conf import CANDIDATES, parse_alloc_conf
from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.errors import EmptyRunError
from gpuledger.model.run import Rank


@dataclass(frozen=True)
class SettingOutcome:
    """The result of one value of ``PYTORCH_CUDA_ALLOC_CONF``; the empty one is the default."""

    alloc_conf: str
    peak_reserved_bytes: int
    peak_allocated_bytes: int


def rank_settings(rank: Rank, device_idx: int, candidates: tuple[str, ...] = CANDIDATES) -> tuple[SettingOutcome, ...]:
    """Return the reserved bytes with each setting, in ascending order.

    Blocks that were alive before the recording are allocated first.

    Raises:
        EmptyRunError: nothing was recorded on the device.

    Source: the recorded requests, replayed in the simulated allocator.
    """
    requests = _requests(rank, device_idx)
    outcomes = []
    for text in candidates:
        allocator = CachingAllocator(parse_alloc_conf(text))
        places: dict[int, int] = {}
        for _, is_alloc, block, size_bytes, stream in requests:
            if is_alloc:
                places[block] = allocator.malloc(size_bytes, stream)
            else:
                allocator.free(places.pop(block))
        counters = allocator.counters
        outcomes.append(SettingOutcome(text, counters.peak_reserved_bytes, counters.peak_allocated_bytes))
    return tuple(sorted(outcomes, key=lambda outcome: (outcome.peak_reserved_bytes, bool(outcome.alloc_conf))))


def _requests(rank: Rank, device_idx: int) -> list[tuple[int, int, int, int, int]]:
    """Return ``(index, is allocation, block, bytes, stream)`` in the order of the requests."""
    names = ("device_idx", "alloc_index", "free_requested_index", "requested_bytes", "stream")
    table = rank.table("blocks", names)
    columns = {name: table.column(name).to_numpy(zero_copy_only=False) for name in names}
    mine = np.flatnonzero(columns["device_idx"] == device_idx)
    if not mine.size:
        raise EmptyRunError(f"{rank.directory.parent.name}: no allocation was recorded on device {device_idx}")
    found = []
    for block in mine.tolist():
        stream, size_bytes = int(columns["stream"][block]), int(columns["requested_bytes"][block])
        found.append((int(columns["alloc_index"][block]), 1, block, size_bytes, stream))
        freed = columns["free_requested_index"][block]
        if not np.isnan(freed):
            found.append((int(freed), 0, block, size_bytes, stream))
    return sorted(found)
