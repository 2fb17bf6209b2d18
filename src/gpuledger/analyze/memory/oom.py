"""Explain a failed allocation: requested bytes, free bytes, and the memory in use at that time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.breakdown import Breakdown, break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.live import device_indices, read_labels, read_numbers

if TYPE_CHECKING:
    from gpuledger.model.manifest import FailedAllocation
    from gpuledger.model.run import Rank


@dataclass(frozen=True)
class OutOfMemory:
    """One failed allocation. Values are None if the device did not report them.

    ``holders`` are the bytes in use when it failed, by category and module; None if no block was recorded.
    """

    device_idx: int
    tried_bytes: int | None
    total_bytes: int | None
    free_bytes: int | None
    largest_free_bytes: int | None
    holders: Breakdown | None


def explain_oom(rank: Rank) -> tuple[OutOfMemory, ...]:
    """Return every out-of-memory error of the recording, in order.

    Source: the allocator's out-of-memory observer. The memory in use is from the allocator's history at that time, or
    at the peak if the time is not known.
    """
    return tuple(_explain(rank, failure) for failure in rank.manifest.oom)


def _explain(rank: Rank, failure: FailedAllocation) -> OutOfMemory:
    device = failure.device_idx or 0
    sizes = failure.tried_bytes, failure.total_bytes, failure.free_bytes, failure.largest_free_bytes
    return OutOfMemory(device, *sizes, _holders(rank, device))


def _holders(rank: Rank, device_idx: int) -> Breakdown | None:
    if device_idx not in device_indices(rank):
        return None
    instant = find_peak(rank, device_idx)
    codes, words = read_labels(rank, "counters", "reason", device_idx)
    index = read_numbers(rank, "counters", "event_index", device_idx)
    failed = index[(codes == words.index("oom")) & (index >= 0)] if "oom" in words else index[:0]
    if failed.size:
        instant = replace(instant, index=int(failed[-1]), label="oom")
    return break_down(rank, instant)
