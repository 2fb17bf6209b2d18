"""One out-of-memory error as the flight recorder stored it: what holds the memory, and what was free in which way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.growth_origin import module_path
from gpuledger.analyze.memory.lines.source_lines import line_texts, read_stacks

if TYPE_CHECKING:
    from gpuledger.model.flight_facts import FailedAllocation
    from gpuledger.model.run import Rank

SMALL_BYTES = 1 << 20
EXACT = ("stack", "address")
"""What a block's line is known by if it is its own, and not that of another block."""
UNKNOWN = "unknown"
"""Category of blocks that no recorded step explains."""


@dataclass(frozen=True)
class FreeBytes:
    """Free bytes inside the process's segments, by whether the request could use them.

    ``usable_bytes`` are in the right pool and of the usual stream, in pieces of at most ``largest_bytes``. The others
    are of another stream, of a private pool of a CUDA graph or a ``MemPool``, or of the pool of the other block sizes.
    ``tail_bytes`` are in the right pool and of the usual stream, too, but at the ends of expandable segments: ``tails``
    pieces of at most ``largest_tail_bytes``. The request could have used one only if its segment had grown.
    """

    usable_bytes: int = 0
    largest_bytes: int = 0
    pieces: int = 0
    other_stream_bytes: int = 0
    private_pool_bytes: int = 0
    other_size_bytes: int = 0
    tail_bytes: int = 0
    largest_tail_bytes: int = 0
    tails: int = 0

    @property
    def in_pieces_bytes(self) -> int:
        """Return the bytes of all pieces in the right pool and of the usual stream."""
        return self.usable_bytes + self.tail_bytes

    @property
    def largest_piece_bytes(self) -> int:
        """Return the size of the largest of these."""
        return max(self.largest_bytes, self.largest_tail_bytes)


@dataclass(frozen=True)
class FailedState:
    """The memory of a device at an out-of-memory error.

    ``categories``, ``modules`` and ``lines`` (of the program) are bytes, largest first. ``known_frac`` is the share of
    the allocated bytes with a known category. ``line_known_bytes`` are of blocks with a Python stack of their own, or
    of recorded steps. ``line_inferred_bytes`` are of blocks with the line of another block, by order or size. The line
    of the rest is not known. ``private_bytes`` are allocated in private pools, ``unused_segments_bytes`` are those of
    segments without a block in use, which emptying the cache gives back. ``data_bytes`` are those of a whole data set,
    of which batches are parts.
    """

    reserved_bytes: int
    allocated_bytes: int
    blocks: int
    categories: dict[str, int]
    modules: dict[str, int]
    known_frac: float
    free: FreeBytes
    private_bytes: int
    unused_segments_bytes: int = 0
    lines: dict[str, int] = field(default_factory=dict)
    line_known_bytes: int = 0
    line_inferred_bytes: int = 0
    data_bytes: int = 0


NOTHING = FailedState(0, 0, 0, {}, {}, 1.0, FreeBytes(), 0)
"""The state of a process in which PyTorch's allocator has reserved no memory."""


def read_failed_state(rank: Rank, failure: FailedAllocation) -> FailedState | None:
    """Return the memory at an error; None if only its size was recorded.

    If a library could not allocate, or the kernel ended a process, the state can be :data:`NOTHING`.

    Source: the allocator's snapshot at the error. Categories and modules are those of the recorded steps' blocks with
    the same address, the same place in a step, or the same size. Lines are from the Python stacks that the flight
    recorder took, otherwise those of the same blocks of the recorded steps.
    """
    nothing = NOTHING if failure.library or failure.killed else None
    if failure.failure_id is None:
        return nothing
    names = ("failure_id", "device_idx", "segment_address", "address", "allocated_bytes", "module_id", "stack_id")
    table = rank.table("failure_blocks", (*names, "state", "category", "phase", "known_by"))
    ids = table.column("failure_id").to_numpy(zero_copy_only=False)
    mine = np.flatnonzero(ids == failure.failure_id)
    if not mine.size:
        return nothing
    state = np.array(table.column("state").to_pylist(), dtype=object)[mine]
    size = table.column("allocated_bytes").to_numpy(zero_copy_only=False)[mine]
    segment, address = (
        table.column(name).to_numpy(zero_copy_only=False)[mine] for name in ("segment_address", "address")
    )
    held, idle = state == "allocated", state == "inactive"
    categories, modules = Counter[str](), Counter[str]()
    words, phases, known_by = (
        np.array(table.column(name).to_pylist(), dtype=object)[mine] for name in ("category", "phase", "known_by")
    )
    numbers, stacks = (
        np.array([-1 if one is None else one for one in table.column(name).to_pylist()])[mine]
        for name in ("module_id", "stack_id")
    )
    for word, number, bytes_ in zip(words[held], numbers[held].tolist(), size[held].tolist(), strict=True):
        categories[word or UNKNOWN] += bytes_
        modules[str(number)] += bytes_
    is_data = held & (words == "input") & (phases == "setup") & has_resident_data(rank)
    segments = _segments(rank, failure.failure_id)
    lines, line_bytes = _line_bytes(rank, stacks[held], size[held], known_by[held])
    total = int(size[held].sum())
    private = np.array([segments.get(one, _NO_SEGMENT).pool_id != 0 for one in segment.tolist()], dtype=bool)
    free = list(map(_Free, size[idle].tolist(), address[idle].tolist(), segment[idle].tolist()))
    return FailedState(
        reserved_bytes=sum(one.bytes for one in segments.values()),
        allocated_bytes=total,
        blocks=int(held.sum()),
        categories=dict(categories.most_common()),
        modules={module_path(rank, int(number)): bytes_ for number, bytes_ in modules.most_common() if number != "-1"},
        known_frac=1 - categories[UNKNOWN] / total if total else 1.0,
        data_bytes=int(size[is_data].sum()),
        free=_free_bytes(failure.tried_bytes or 0, free, segments),
        private_bytes=int(size[held & private].sum()),
        lines=lines,
        line_known_bytes=line_bytes[True],
        line_inferred_bytes=line_bytes[False],
        unused_segments_bytes=int(size[~np.isin(segment, segment[~idle])].sum()),
    )


def _line_bytes(
    rank: Rank, stacks: NDArray[np.int64], sizes: NDArray[np.int64], known_by: NDArray[np.object_]
) -> tuple[dict[str, int], Counter[bool]]:
    """Return line of the program -> bytes, largest first, of the blocks with a line.

    Also returns how many of these bytes are of exactly known lines (True), and how many are of inferred ones.
    """
    found, by_kind = Counter[str](), Counter[bool]()
    texts = line_texts(read_stacks(rank)) if (stacks >= 0).any() else {}
    for stack, size, how in zip(stacks.tolist(), sizes.tolist(), known_by.tolist(), strict=True):
        if (line := texts.get(stack)) is not None:
            found[line] += size
            by_kind[how in EXACT] += size
    return dict(found.most_common()), by_kind


class _Segment(NamedTuple):
    bytes: int
    stream: int
    small: bool
    pool_id: int
    expandable: bool


class _Free(NamedTuple):
    bytes: int
    address: int
    segment: int


_NO_SEGMENT = _Segment(0, 0, False, 0, False)


def _segments(rank: Rank, failure_id: int) -> dict[int, _Segment]:
    """Return the segments by their address."""
    table = rank.table("failure_segments", ("failure_id", "address", *_Segment._fields))
    rows = [row for row in table.to_pylist() if row["failure_id"] == failure_id]
    return {row["address"]: _Segment(*(row[name] for name in _Segment._fields)) for row in rows}


def _free_bytes(tried_bytes: int, blocks: list[_Free], segments: dict[int, _Segment]) -> FreeBytes:
    usual = Counter(one.stream for one in segments.values()).most_common(1)
    usual_stream = usual[0][0] if usual else 0
    totals = Counter[str]()
    pieces: list[int] = []
    tails: list[int] = []
    for one in blocks:
        segment = segments.get(one.segment, _NO_SEGMENT)
        if segment.pool_id != 0:
            totals["private"] += one.bytes
        elif segment.stream != usual_stream:
            totals["stream"] += one.bytes
        elif segment.small != (tried_bytes <= SMALL_BYTES):
            totals["size"] += one.bytes
        elif segment.expandable and one.bytes < tried_bytes and one.address + one.bytes == one.segment + segment.bytes:
            tails.append(one.bytes)
        else:
            pieces.append(one.bytes)
    return FreeBytes(
        *(sum(pieces), max(pieces, default=0), len(pieces)),
        *(totals["stream"], totals["private"], totals["size"]),
        *(sum(tails), max(tails, default=0), len(tails)),
    )


def has_resident_data(rank: Rank) -> bool:
    """Return whether batches are parts of a whole data set, which is an input of the setup."""
    return bool(rank.manifest.inputs and rank.manifest.inputs.is_part)
