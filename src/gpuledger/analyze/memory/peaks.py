"""Peak memory of a device: in the recorded steps, and in the whole program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.lifetimes import (
    allocated_curve,
    is_reserved_known,
    read_lives,
    read_numbers,
    reserved_curve,
)

if TYPE_CHECKING:
    from gpuledger.model.run import Rank


@dataclass(frozen=True)
class AllocatorPeaks:
    """Peaks of allocated and reserved bytes of one device.

    ``peak_allocated_bytes`` and ``peak_reserved_bytes`` are those of the whole program, as
    ``torch.cuda.max_memory_allocated`` and ``max_memory_reserved``. ``recorded_peak_allocated_bytes`` and
    ``recorded_peak_reserved_bytes`` are those of the recorded steps; only these can be broken down. Reserved bytes are
    None for imported files that do not have them.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    recorded_peak_allocated_bytes: int
    recorded_peak_reserved_bytes: int | None


def allocator_peaks(rank: Rank, device_idx: int) -> AllocatorPeaks:
    """Return the peaks of a device that has blocks.

    Source: caching allocator's history, exact. Outside the recorded steps its peak counters, exact; if the program
    resets peak statistics, earlier peaks are missing.
    """
    allocated = int(allocated_curve(read_lives(rank, device_idx)).bytes.max())
    known = is_reserved_known(rank, device_idx)
    reserved = int(reserved_curve(rank, device_idx).bytes.max()) if known else None
    return AllocatorPeaks(
        peak_allocated_bytes=max(allocated, _counted(rank, device_idx, "peak_allocated_bytes")),
        peak_reserved_bytes=(
            None if reserved is None else max(reserved, _counted(rank, device_idx, "peak_reserved_bytes"))
        ),
        recorded_peak_allocated_bytes=allocated,
        recorded_peak_reserved_bytes=reserved,
    )


def _counted(rank: Rank, device_idx: int, column: str) -> int:
    counted = read_numbers(rank, "counters", column, device_idx)
    return int(counted.max()) if counted.size else 0
