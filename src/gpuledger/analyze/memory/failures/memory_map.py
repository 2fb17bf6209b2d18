"""Segments and blocks at an out-of-memory error, in the order of their addresses: what `_memory_viz` calls state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.memory.failures.failed_request import UNKNOWN

if TYPE_CHECKING:
    from gpuledger.model.flight_facts import FailedAllocation
    from gpuledger.model.run import Rank

MOST_SEGMENTS = 60
MOST_PARTS = 400
"""Number of parts of a segment that are drawn apart. The largest screens are a few times as wide."""
FREE, TOO_SMALL = "free", "free, too small"


@dataclass(frozen=True)
class MappedSegment:
    """One segment. ``parts`` are (what, bytes) in the order of their addresses; neighbours of one kind are joined.

    What a part is: a category, ``unknown``, ``free``, or ``free, too small`` for the request. If there are more than
    :data:`MOST_PARTS`, each part is an equal piece of the segment, with what most of it is. ``totals`` are the bytes of
    all blocks by what they are, the largest first.
    """

    address: int
    bytes: int
    stream: int
    pool_id: int
    parts: tuple[tuple[str, int], ...]
    totals: dict[str, int]


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
        _segment(row, sorted(parts.get(row["address"], []))) for row in sorted(chosen, key=lambda row: row["address"])
    )
    return mapped, len(segments) - len(mapped)


def _segment(row: dict[str, Any], blocks: list[tuple[int, str, int]]) -> MappedSegment:
    totals = Counter[str]()
    for _, what, size in blocks:
        totals[what] += size
    joined = _joined((what, size) for _, what, size in blocks)
    shown = joined if len(joined) <= MOST_PARTS else _joined(_pieces(joined))
    sizes = row["address"], row["bytes"], row["stream"], row["pool_id"]
    return MappedSegment(*sizes, tuple(shown), dict(totals.most_common()))


def _joined(parts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return parts with neighbours of one kind as one."""
    found: list[tuple[str, int]] = []
    for what, size in parts:
        if found and found[-1][0] == what:
            found[-1] = what, found[-1][1] + size
        else:
            found.append((what, size))
    return found


def _pieces(parts: list[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Yield :data:`MOST_PARTS` equal pieces, each with what most of it is."""
    whole = sum(size for _, size in parts)
    ends = [whole * number // MOST_PARTS for number in range(MOST_PARTS + 1)]
    position = at = 0  # of the part, and where it begins
    for begin, end in pairwise(ends):
        inside = Counter[str]()
        while at < end:
            what, size = parts[position]
            inside[what] += min(at + size, end) - max(at, begin)
            if at + size > end:
                break
            at, position = at + size, position + 1
        yield inside.most_common(1)[0][0], end - begin
