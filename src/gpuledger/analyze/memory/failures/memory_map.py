"""Segments and blocks at an out-of-memory error, in the order of their addresses: what `_memory_viz` calls state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.failures.failed_request import UNKNOWN

if TYPE_CHECKING:
    from gpuledger.model.flight_facts import FailedAllocation
    from gpuledger.model.run import Rank

MOST_SEGMENTS = 60
MOST_PARTS = 200
FREE, TOO_SMALL = "free", "free, too small"


@dataclass(frozen=True)
class MappedSegment:
    """One segment. ``parts`` are (what, bytes) in the order of their addresses; neighbours of one kind are joined.

    What a part is: a category, ``unknown``, ``free``, or ``free, too small`` for the request.
    """

    address: int
    bytes: int
    stream: int
    pool_id: int
    parts: tuple[tuple[str, int], ...]


def read_memory_map(
    rank: Rank, failure: FailedAllocation, most: int = MOST_SEGMENTS
) -> tuple[tuple[MappedSegment, ...], int]:
    """Return the segments with most free bytes in the order of their addresses, and the number of the others."""
    tried = failure.tried_bytes or 0
    segments = [
        row
        for row in rank.table("failure_segments").to_pylist()
        if row["failure_id"] == failure.failure_id and row["device_idx"] == failure.device_idx
    ]
    names = ("failure_id", "segment_address", "address", "allocated_bytes", "state", "category")
    parts: dict[int, list[tuple[int, str, int]]] = {}
    for row in rank.table("failure_blocks", names).to_pylist():
        if row["failure_id"] != failure.failure_id:
            continue
        size = row["allocated_bytes"]
        free = TOO_SMALL if size < tried else FREE
        what = free if row["state"] == "inactive" else row["category"] or UNKNOWN
        parts.setdefault(row["segment_address"], []).append((row["address"], what, size))
    parts |= {row["address"]: [] for row in segments if row["address"] not in parts}
    free_bytes = {
        place: sum(size for _, what, size in of_segment if what in (FREE, TOO_SMALL))
        for place, of_segment in parts.items()
    }
    chosen = sorted(segments, key=lambda row: (-free_bytes.get(row["address"], 0), -row["bytes"]))[:most]
    mapped = tuple(
        MappedSegment(
            row["address"], row["bytes"], row["stream"], row["pool_id"], _joined(parts.get(row["address"], []))
        )
        for row in sorted(chosen, key=lambda row: row["address"])
    )
    return mapped, len(segments) - len(mapped)


def _joined(parts: list[tuple[int, str, int]]) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for _, what, size in sorted(parts):
        if found and (found[-1][0] == what or len(found) >= MOST_PARTS):
            found[-1] = found[-1][0], found[-1][1] + size
        else:
            found.append((what, size))
    return tuple(found)
