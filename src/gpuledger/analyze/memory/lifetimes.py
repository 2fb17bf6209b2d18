"""Lifetimes of one device's blocks, and running sums over its events.

A block with tensors of several modules counts as several, which are allocated and freed together: one for each tensor.
An *index* numbers a device's allocator events; "at index i" is the state just after event i. A block counts as
allocated at i if ``alloc_index <= i < free_requested_index``. All other analysis of memory uses this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.replay import NEVER
from gpuledger.errors import EmptyRunError, UsageError
from gpuledger.model.arrow_numbers import to_numbers
from gpuledger.units import device_label

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuledger.model.run import Rank

I64 = NDArray[np.int64]
_LIFE_COLUMNS = (
    *("device_idx", "allocated_bytes", "requested_bytes"),
    *("alloc_index", "free_requested_index", "free_index"),
)
"""Columns that are read together: each read of a file of many ranks costs more than its values."""


@dataclass(frozen=True)
class Lives:
    """The blocks of one device. Each array has one element per block.

    ``alloc_index`` is -1 for blocks alive before the recording. ``free_requested_index`` and ``free_index`` are
    :data:`NEVER` if that did not happen.
    """

    device_idx: int
    allocated_bytes: I64
    requested_bytes: I64
    alloc_index: I64
    free_requested_index: I64
    free_index: I64

    def allocated_at(self, index: int) -> NDArray[np.bool_]:
        """Return which blocks are allocated at ``index``."""
        return (self.alloc_index <= index) & (self.free_requested_index > index)

    def active_at(self, index: int) -> NDArray[np.bool_]:
        """Return which blocks are allocated or awaiting free at ``index``."""
        return (self.alloc_index <= index) & (self.free_index > index)

    @cached_property
    def allocated(self) -> Curve:
        """The allocated bytes after every event that changes them."""
        return running_sum(self.allocated_bytes, self.alloc_index, self.free_requested_index)

    @property
    def last_index(self) -> int:
        """Return the index of the last event of any block; -1 if there is none."""
        return max(_last_known(marks) for marks in (self.alloc_index, self.free_requested_index, self.free_index))


@dataclass(frozen=True)
class Curve:
    """A sum that changes at events: ``index`` int64[n] ascending and distinct, ``bytes`` int64[n] just after each."""

    index: I64
    bytes: I64

    def at(self, index: int) -> int:
        """Return the bytes at ``index``; 0 before the first change."""
        place = int(np.searchsorted(self.index, index, side="right")) - 1
        return int(self.bytes[place]) if place >= 0 else 0


def read_lives(rank: Rank, device_idx: int) -> Lives:
    """Return the blocks of one device, in the order of the table. They are read once, as columns are."""

    def read(column: str, missing: int = -1) -> I64:
        return read_numbers(rank, "blocks", column, device_idx, missing)

    def read_all() -> Lives:
        rank.table("blocks", _LIFE_COLUMNS)
        return Lives(
            device_idx,
            allocated_bytes=read("allocated_bytes"),
            requested_bytes=read("requested_bytes"),
            alloc_index=read("alloc_index"),
            free_requested_index=read("free_requested_index", NEVER),
            free_index=read("free_index", NEVER),
        )

    return rank.computed(f"blocks over time of device {device_idx}", read_all)


def read_numbers(rank: Rank, table: str, column: str, device_idx: int, missing: int = -1) -> I64:
    """Return a column's rows of one device as int64[n], with ``missing`` for null."""
    values = to_numbers(rank.table(table, (column, "device_idx")).column(0), missing)
    parts = read_parts(rank) if table == "blocks" else None
    return of_device(rank, table, device_idx, values if parts is None else parts.divided(column, values))


def read_labels(rank: Rank, table: str, column: str, device_idx: int) -> tuple[I64, tuple[str, ...]]:
    """Return a label column's rows of one device as positions in a list of labels, and that list; -1 for null."""
    import pyarrow as pa

    values = rank.table(table, (column, "device_idx")).column(0).combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    codes = to_numbers(values.indices, -1)
    parts = read_parts(rank) if table == "blocks" else None
    codes = codes if parts is None else parts.divided(column, codes)
    return of_device(rank, table, device_idx, codes), tuple(str(word) for word in values.dictionary.to_pylist())


def of_device(rank: Rank, table: str, device_idx: int, values: NDArray[Any]) -> NDArray[Any]:
    """Return the elements of ``values`` (one per row of ``table``) that belong to ``device_idx``."""

    def find() -> NDArray[np.bool_] | None:
        devices = to_numbers(rank.table(table, ("device_idx",)).column(0))
        parts = read_parts(rank) if table == "blocks" else None
        mine = (devices if parts is None else parts.divided("device_idx", devices)) == device_idx
        return None if mine.all() else mine

    mine = rank.computed(f"rows of device {device_idx} in {table}", find)
    return values if mine is None else values[mine]


@dataclass(frozen=True)
class BlockParts:
    """The rows of ``blocks`` with a row for each part of a divided block.

    ``row`` is the row of the block. ``place`` are the rows that are parts, of which the other arrays are the columns.
    """

    row: I64
    place: I64
    columns: dict[str, I64]

    def divided(self, column: str, values: I64) -> I64:
        """Return a column of ``blocks`` with an element for each part."""
        found = values[self.row]
        if column in ("module_id", "name_id"):
            found[self.place] = self.columns[column]
        elif column == "requested_bytes":
            found[self.place] = self.columns["bytes"]
        elif column == "allocated_bytes":  # the last part of a block has what its bytes are rounded up by
            found[self.place] = self.columns["bytes"]
            is_last = np.append(self.row[1:] != self.row[:-1], True)[self.place]
            ends = self.place[is_last]
            found[ends] = values[self.row[ends]] - self.columns["offset_bytes"][is_last]
        return found


def read_parts(rank: Rank) -> BlockParts | None:
    """Return the parts of divided blocks; None if no block is divided. Parts that are not a whole block are ignored."""

    def read() -> BlockParts | None:
        names = ("block", "module_id", "name_id", "offset_bytes", "bytes")
        table = rank.table("block_parts", names)
        if not table.num_rows:
            return None
        sizes = to_numbers(rank.table("blocks", ("requested_bytes",)).column(0))
        count = int(sizes.size)
        columns = {name: to_numbers(table[name], -1) for name in names}
        order = np.lexsort((columns["offset_bytes"], columns["block"]))
        columns = {name: values[order] for name, values in columns.items()}
        known = _are_whole(columns["block"], columns["offset_bytes"], columns["bytes"], sizes)
        columns = {name: values[known] for name, values in columns.items()}
        parts = np.bincount(columns["block"], minlength=count)
        row = np.repeat(np.arange(count), np.maximum(parts, 1))
        return BlockParts(row, np.flatnonzero(parts[row] > 0), columns)

    return rank.computed("parts of blocks", read)


def _are_whole(block: I64, offset_bytes: I64, part_bytes: I64, block_bytes: I64) -> NDArray[np.bool_]:
    """Return which parts, in order, are of a block that its parts fill without gaps."""
    if not block.size:
        return np.zeros(0, dtype=bool)
    ends = offset_bytes + part_bytes
    is_first = np.append(True, block[1:] != block[:-1])
    is_last = np.append(is_first[1:], True)
    inside = (block >= 0) & (block < block_bytes.size) & (part_bytes > 0)
    whole_bytes = block_bytes[np.where(inside, block, 0)] if block_bytes.size else np.full(block.size, -1)
    is_right = inside & (offset_bytes == np.where(is_first, 0, np.append(0, ends[:-1])))
    is_right &= ~is_last | (ends == whole_bytes)
    group = np.cumsum(is_first) - 1
    found: NDArray[np.bool_] = (np.bincount(group, ~is_right) == 0)[group]
    return found


def device_indices(rank: Rank) -> tuple[int, ...]:
    """Return the devices that have blocks, in ascending order."""

    def find() -> tuple[int, ...]:
        return tuple(distinct_numbers(to_numbers(rank.table("blocks", ("device_idx",)).column(0))).tolist())

    return rank.computed("devices of blocks", find)


def pick_device(rank: Rank, device_idx: int | None = None) -> int:
    """Return ``device_idx``; for None, the device with the highest peak of allocated bytes.

    Raises:
        EmptyRunError: no block was recorded.
        UsageError: the device has no blocks.
    """
    have = device_indices(rank)
    if not have:
        raise EmptyRunError(f"{title(rank)}: no allocation was recorded")
    if device_idx is not None:
        if device_idx not in have:
            raise no_such_device(rank, device_idx, have)
        return device_idx
    if len(have) == 1:
        return have[0]
    return max(have, key=lambda device: int(allocated_curve(read_lives(rank, device)).bytes.max()))


def no_such_device(rank: Rank, device_idx: int, have: Iterable[int]) -> UsageError:
    """Return the error for a device that a run does not have."""
    names = ", ".join(map(device_label, have))
    return UsageError(
        f"{title(rank)}: the run has no device {device_label(device_idx)}", hint=f"Choose one of: {names}"
    )


def title(rank: Rank) -> str:
    """Return the name of a rank in messages."""
    return f"{rank.directory.parent.name}: rank {rank.number}"


def allocated_curve(lives: Lives) -> Curve:
    """Return the allocated bytes after every event that changes them.

    Source: caching allocator's history, exact.
    """
    return lives.allocated


def reserved_curve(rank: Rank, device_idx: int) -> Curve:
    """Return the bytes of all segments after every event that changes them; allocated bytes if there are none.

    Source: caching allocator's history, exact. CPU tensors have no segments.
    """
    rank.table("segments", ("device_idx", "bytes", "alloc_index", "free_index"))  # in one read
    sizes = read_numbers(rank, "segments", "bytes", device_idx)
    if not sizes.size:
        return allocated_curve(read_lives(rank, device_idx))
    taken = read_numbers(rank, "segments", "alloc_index", device_idx)
    return running_sum(sizes, taken, read_numbers(rank, "segments", "free_index", device_idx, NEVER))


def is_reserved_known(rank: Rank, device_idx: int) -> bool:
    """Return whether the size of all segments is known: a file of another tool may have allocations only."""
    if device_idx < 0 or not rank.manifest.recorder.is_imported or rank.manifest.recorder.has_segments:
        return True
    return bool(read_numbers(rank, "segments", "bytes", device_idx).size)


def running_sum(sizes: I64, start: I64, end: I64) -> Curve:
    """Return the sum of ``sizes`` over intervals from ``start`` to before ``end`` (:data:`NEVER`: no end)."""
    ended = end != NEVER
    marks, changes = np.concatenate((start, end[ended])), np.concatenate((sizes, -sizes[ended]))
    low, width = _range_of(marks)
    if _is_sparse(marks, width):
        points, place = distinct(marks)
        change = np.zeros(points.size, dtype=np.int64)
        np.add.at(change, place, changes)
        return Curve(points, np.cumsum(change))
    marks -= low
    change, seen = np.zeros(width, dtype=np.int64), np.zeros(width, dtype=bool)
    np.add.at(change, marks, changes)
    seen[marks] = True
    points = np.flatnonzero(seen)
    return Curve(points + low, np.cumsum(change)[points])


def distinct(marks: I64) -> tuple[I64, I64]:
    """Return the distinct ``marks`` in ascending order, and each mark's position among them.

    Event indices are dense, so a lookup table is faster than sorting. Sparse ones (a damaged table) are sorted.
    """
    low, width = _range_of(marks)
    if _is_sparse(marks, width):
        points, place = np.unique(marks, return_inverse=True)
        return points, place.astype(np.int64)
    seen = np.zeros(width, dtype=bool)
    seen[marks - low] = True
    return np.flatnonzero(seen).astype(np.int64) + low, (np.cumsum(seen) - 1)[marks - low]


def distinct_numbers(numbers: I64) -> I64:
    """Return the distinct numbers in ascending order.

    ``np.unique`` does the same. Without further results, it imports ``numpy.ma``, which takes longer than most uses.
    """
    low, width = _range_of(numbers)
    if _is_sparse(numbers, width):
        return np.unique(numbers, return_index=True)[0]
    seen = np.zeros(width, dtype=bool)
    seen[numbers - low] = True
    return np.flatnonzero(seen).astype(np.int64) + low


def _range_of(marks: I64) -> tuple[int, int]:
    """Return the smallest mark, and how many numbers there are from it to the largest one."""
    low = int(marks.min()) if marks.size else 0
    return low, int(marks.max()) - low + 1 if marks.size else 0


def _is_sparse(marks: I64, width: int) -> bool:
    """Return whether a lookup table of ``width`` would be too large for so few marks."""
    return width > 4 * marks.size + (1 << 20)


def sums_at(points: I64, lives: Lives, groups: I64, count: int) -> tuple[I64, I64]:
    """Return requested bytes by group, int64[count, n], and rounding, int64[n], at each of ``points`` (ascending).

    ``groups`` has one number below ``count`` per block.
    """
    width = points.size + 1
    born = np.searchsorted(points, lives.alloc_index)
    died = np.searchsorted(points, lives.free_requested_index)
    change = np.zeros(count * width, dtype=np.int64)
    np.add.at(change, groups * width + born, lives.requested_bytes)
    np.subtract.at(change, groups * width + died, lives.requested_bytes)
    rounded = lives.allocated_bytes - lives.requested_bytes
    rounding = np.zeros(width, dtype=np.int64)
    np.add.at(rounding, born, rounded)
    np.subtract.at(rounding, died, rounded)
    return np.cumsum(change.reshape(count, width)[:, :-1], axis=1), np.cumsum(rounding[:-1])


def _last_known(marks: I64) -> int:
    known = marks[marks != NEVER]
    return int(known.max()) if known.size else -1
