"""Compute allocated bytes from requested bytes, by replaying the allocator's free ranges.

The history contains each allocation's address and its *requested* bytes. The *allocated* bytes follow from the
allocator's rules. A free block is always the largest free range around its address inside one segment. An allocation
takes the front of a free block, and the rest is split off only if the allocator's rule allows it. Exact; checked
against the closing snapshot.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.model.journal.journal import Action

MIN_BLOCK_BYTES = 512
SMALL_BYTES = 1 << 20
"""Requests up to this size come from the small pool. In the large pool, a rest of up to this size is not split off."""


@dataclass(frozen=True)
class AllocatorSettings:
    """The settings of PyTorch's caching allocator that determine a block's size.

    ``power2_divisions`` maps a size class (bytes, a power of two) to its number of divisions; 0 and 1 mean none.
    ``max_split_bytes`` None means unlimited.
    """

    power2_divisions: tuple[tuple[int, int], ...] = ()
    max_split_bytes: int | None = None
    expandable: bool = False

    @classmethod
    def from_snapshot(cls, kept: Mapping[str, Any]) -> AllocatorSettings:
        """Return the settings in a snapshot's ``allocator_settings``, with defaults for missing ones."""
        divisions = kept.get("roundup_power2_divisions")
        pairs = divisions.items() if isinstance(divisions, Mapping) else ()
        power2_divisions = tuple(sorted((int(size) << 20, int(number)) for size, number in pairs))
        limit = kept.get("max_split_size", -1)
        return cls(
            power2_divisions=power2_divisions if any(number for _, number in power2_divisions) else (),
            max_split_bytes=limit if isinstance(limit, int) and 0 < limit < 1 << 62 else None,
            expandable=bool(kept.get("expandable_segments", False)),
        )

    def round_up(self, requested_bytes: int) -> int:
        """Return the bytes to which a request is rounded up before a block is searched."""
        if requested_bytes < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        divisions = self._divisions_for(requested_bytes) if self.power2_divisions else 0
        if divisions > 1 and requested_bytes > MIN_BLOCK_BYTES * divisions:
            floor = 1 << (requested_bytes.bit_length() - 1)
            if floor == requested_bytes:
                return requested_bytes
            piece = floor // divisions
            return -(-requested_bytes // piece) * piece if piece else floor * 2
        return -(-requested_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES

    def _divisions_for(self, requested_bytes: int) -> int:
        """Return the divisions of a request's size class. The first class also applies to all smaller sizes."""
        chosen = self.power2_divisions[0][1]
        for size_class_bytes, divisions in self.power2_divisions:
            if requested_bytes < size_class_bytes:
                break
            chosen = divisions
        return chosen

    def splits(self, rounded_bytes: int, rest_bytes: int) -> bool:
        """Return whether the allocator splits ``rest_bytes`` off a free block that it allocates."""
        if rounded_bytes <= SMALL_BYTES or self.expandable:
            return rest_bytes >= MIN_BLOCK_BYTES
        if self.max_split_bytes is not None and rounded_bytes >= self.max_split_bytes:
            return False
        return rest_bytes > SMALL_BYTES


@dataclass
class FreeRanges:
    """Free ranges by both ends. Neighbours merge unless a segment starts between them.

    Overlapping ranges, which only a damaged history contains, replace each other without an error.
    """

    size_at: dict[int, int] = field(default_factory=dict)
    start_by_end: dict[int, int] = field(default_factory=dict)
    segment_starts: set[int] = field(default_factory=set)

    def add(self, address: int, size_bytes: int) -> None:
        """Add a free range, merged with its free neighbours in the same segment."""
        end = address + size_bytes
        # A segment may lie right behind another one: blocks of two segments never merge, whatever their addresses.
        if address not in self.segment_starts and address in self.start_by_end:
            before = self.start_by_end.pop(address)
            if self.size_at.pop(before, None) is not None:
                address = before
        if end not in self.segment_starts and end in self.size_at:
            end += self.size_at.pop(end)
        self.size_at[address] = end - address
        self.start_by_end[end] = address

    def take(self, address: int) -> int | None:
        """Remove the range that starts at ``address``, and return its bytes; None if there is none."""
        size_bytes = self.size_at.pop(address, None)
        if size_bytes is not None:
            self.start_by_end.pop(address + size_bytes, None)
        return size_bytes

    def cut(self, address: int, size_bytes: int) -> None:
        """Remove ``[address, address + size_bytes)`` from the free range that contains it."""
        start, length = address, self.size_at.get(address, 0)
        if length < size_bytes:  # it begins inside a range: rare (an unmapped piece), so a linear search is fast enough
            inside = ((low, n) for low, n in self.size_at.items() if low <= address and address + size_bytes <= low + n)
            start, length = next(inside, (0, 0))
        if not length:
            return
        self.take(start)
        if start < address:
            self.add(start, address - start)
        rest_bytes = start + length - address - size_bytes
        if rest_bytes:
            self.add(address + size_bytes, rest_bytes)


@dataclass(frozen=True)
class Replay:
    """Every block and segment of one device.

    Block arrays have one entry per allocation, starting with those alive at the start (``alloc_index`` -1). An index of
    :data:`NEVER` means "did not happen". ``unmatched_events`` counts events that did not fit the replayed state.
    """

    address: NDArray[np.int64]
    stream: NDArray[np.int64]
    requested_bytes: NDArray[np.int64]
    allocated_bytes: NDArray[np.int64]
    alloc_index: NDArray[np.int64]
    free_requested_index: NDArray[np.int64]
    free_index: NDArray[np.int64]
    segment_address: NDArray[np.int64]
    segment_bytes: NDArray[np.int64]
    segment_stream: NDArray[np.int64]
    segment_alloc_index: NDArray[np.int64]
    segment_free_index: NDArray[np.int64]
    segment_mapped: NDArray[np.bool_]
    unmatched_events: int


NEVER = np.iinfo(np.int64).max
EVENTS_AT_ONCE = 1 << 16
_GIVEN, _FREE_REQUESTED, _FREE_COMPLETED, _ROW = 3, 5, 6, 7


class _Replayer:
    """The state during the replay.

    Blocks are rows of seven numbers in one flat array, so that a long history takes 56 bytes per block.
    """

    def __init__(self, settings: AllocatorSettings, *, sizes_given: bool) -> None:
        self.settings = settings
        self.sizes_given = sizes_given
        self.free = FreeRanges()
        self.rows = array("q")
        self.live: dict[int, int] = {}
        self.freeing: dict[int, list[int]] = {}
        self.segments: list[list[int]] = []
        self.live_segments: dict[int, list[int]] = {}
        self.unmatched_events = 0
        self.rounded: dict[int, int] = {}

    def open_segment(self, address: int, size_bytes: int, stream: int, index: int, mapped: int) -> None:
        # Mapped pieces of an expandable segment do merge with their neighbours, so they are no segment starts.
        row = [address, size_bytes, stream, index, NEVER, mapped]
        self.segments.append(row)
        self.live_segments[address] = row
        if not mapped:
            self.free.segment_starts.add(address)

    def open_block(self, address: int, requested_bytes: int, allocated_bytes: int, stream: int, awaiting: bool) -> None:
        row = len(self.rows)
        self.rows.extend((address, stream, requested_bytes, allocated_bytes, -1, -1 if awaiting else NEVER, NEVER))
        if awaiting:
            self.freeing.setdefault(address, []).append(row)
        else:
            self.live[address] = row

    def alloc(self, index: int, address: int, size_bytes: int, stream: int) -> None:
        given_bytes = size_bytes if self.sizes_given else self._given(address, size_bytes)
        row = len(self.rows)
        self.rows.extend((address, stream, size_bytes, given_bytes, index, NEVER, NEVER))
        if address in self.live:  # its free is missing: events were lost, or the history is damaged
            self.unmatched_events += 1
        self.live[address] = row

    def _given(self, address: int, size_bytes: int) -> int:
        rounded_bytes = self.rounded.get(size_bytes)
        if rounded_bytes is None:
            rounded_bytes = self.rounded[size_bytes] = self.settings.round_up(size_bytes)
        free_bytes = self.free.take(address)
        if free_bytes is None or free_bytes < rounded_bytes:
            self.unmatched_events += 1
            return rounded_bytes
        rest_bytes = free_bytes - rounded_bytes
        # The allocator hands out the front of a block. A rest that it does not split off belongs to the block, so the
        # program holds more than it asked for until the block is freed.
        if rest_bytes and self.settings.splits(rounded_bytes, rest_bytes):
            self.free.size_at[address + rounded_bytes] = rest_bytes
            self.free.start_by_end[address + free_bytes] = address + rounded_bytes
            return rounded_bytes
        return free_bytes

    def free_requested(self, index: int, address: int, size_bytes: int, stream: int) -> None:
        row = self.live.pop(address, None)
        if row is None:
            self.unmatched_events += 1
            return
        self.rows[row + _FREE_REQUESTED] = index
        # Until other streams are done with it, the block is active but not allocated. Its address may not be reused
        # before that; a list, because a damaged history can free one address twice.
        self.freeing.setdefault(address, []).append(row)

    def free_completed(self, index: int, address: int, size_bytes: int, stream: int) -> None:
        rows = self.freeing.get(address)
        if not rows:
            self.unmatched_events += 1
            return
        row = rows.pop()
        if not rows:
            del self.freeing[address]
        self.rows[row + _FREE_COMPLETED] = index
        if not self.sizes_given:
            self.free.add(address, self.rows[row + _GIVEN])

    def segment_alloc(self, index: int, address: int, size_bytes: int, stream: int) -> None:
        self.open_segment(address, size_bytes, stream, index, 0)
        self.free.add(address, size_bytes)

    def segment_free(self, index: int, address: int, size_bytes: int, stream: int) -> None:
        row = self.live_segments.pop(address, None)
        if row is None or self.free.take(address) != size_bytes:
            self.unmatched_events += 1
        if row is not None:
            row[4] = index
        self.free.segment_starts.discard(address)

    def segment_map(self, index: int, address: int, size_bytes: int, stream: int) -> None:
        self.open_segment(address, size_bytes, stream, index, 1)
        self.free.add(address, size_bytes)

    def segment_unmap(self, index: int, address: int, size_bytes: int, stream: int) -> None:
        self.free.cut(address, size_bytes)
        inside = [s for s in self.live_segments.values() if s[0] < address + size_bytes and address < s[0] + s[1]]
        if not inside:
            self.unmatched_events += 1
        for row in inside:
            self._unmap(row, index, address, address + size_bytes)

    def _unmap(self, row: list[int], index: int, start: int, end: int) -> None:
        """End a mapped piece. What remains of it on either side becomes a piece of its own."""
        row[4] = index
        del self.live_segments[row[0]]
        for left, right in ((row[0], start), (end, row[0] + row[1])):
            if left < right:
                self.open_segment(left, right - left, row[2], index, 1)


@dataclass(frozen=True)
class OpenState:
    """The state when the recording began: rows of one device's opening snapshot.

    ``blocks``: int64[n, 4] of address, allocated bytes, requested bytes, state (model.journal.BlockState).
    ``segments``: int64[m, 4] of address, bytes, stream, expandable.
    ``block_stream``: int64[n].
    """

    segments: NDArray[np.int64]
    blocks: NDArray[np.int64]
    block_stream: NDArray[np.int64]


def replay(
    action: NDArray[np.int8],
    address: NDArray[np.int64],
    size_bytes: NDArray[np.int64],
    stream: NDArray[np.int64],
    opening: OpenState | None,
    settings: AllocatorSettings,
    *,
    sizes_given: bool = False,
) -> Replay:
    """Return the lifetime of every block and segment, with allocated bytes, from one device's events in order.

    Args:
        action: Per event, :class:`gpuledger.model.journal.journal.Action`.
        address: First byte.
        size_bytes: Requested bytes (allocations), allocated bytes (segments).
        stream: Stream of the event.
        opening: State before the first event, or None for an empty allocator.
        settings: The allocator's settings.
        sizes_given: Whether the sizes are allocated bytes already (CPU tensors), so that no replay is needed.

    Source: caching allocator's history, exact.
    """
    state = _Replayer(settings, sizes_given=sizes_given)
    if opening is not None:
        _open(state, opening)
    handlers = {
        int(Action.ALLOC): state.alloc,
        int(Action.FREE_REQUESTED): state.free_requested,
        int(Action.FREE_COMPLETED): state.free_completed,
        int(Action.SEGMENT_ALLOC): state.segment_alloc,
        int(Action.SEGMENT_FREE): state.segment_free,
        int(Action.SEGMENT_MAP): state.segment_map,
        int(Action.SEGMENT_UNMAP): state.segment_unmap,
    }
    for first in range(0, action.size, EVENTS_AT_ONCE):
        pieces = (values[first : first + EVENTS_AT_ONCE].tolist() for values in (action, address, size_bytes, stream))
        for index, (what, where, how_much, on) in enumerate(zip(*pieces, strict=True), first):
            handler = handlers.get(what)
            if handler is not None:
                handler(index, where, how_much, on)
    return _replayed(state)


def _replayed(state: _Replayer) -> Replay:
    blocks = np.array(state.rows, dtype=np.int64).reshape(-1, _ROW).T.copy()
    segments = np.array(state.segments, dtype=np.int64).reshape(-1, 6).T
    first_byte, block_stream, requested_bytes, allocated_bytes, alloc_index, free_requested_index, free_index = blocks
    return Replay(
        address=first_byte,
        stream=block_stream,
        requested_bytes=requested_bytes,
        allocated_bytes=allocated_bytes,
        alloc_index=alloc_index,
        free_requested_index=free_requested_index,
        free_index=free_index,
        segment_address=segments[0],
        segment_bytes=segments[1],
        segment_stream=segments[2],
        segment_alloc_index=segments[3],
        segment_free_index=segments[4],
        segment_mapped=segments[5].astype(bool),
        unmatched_events=state.unmatched_events,
    )


def _open(state: _Replayer, opening: OpenState) -> None:
    for address, size_bytes, stream, expandable in opening.segments.tolist():
        state.open_segment(address, size_bytes, stream, -1, expandable)
    for (address, given_bytes, requested_bytes, block_state), stream in zip(
        opening.blocks.tolist(), opening.block_stream.tolist(), strict=True
    ):
        if block_state == 0:
            state.free.add(address, given_bytes)
        else:
            state.open_block(address, requested_bytes, given_bytes, stream, awaiting=block_state == 2)


def freed_by_failure(action: NDArray[np.int8], lives: Replay) -> NDArray[np.bool_]:
    """Return which blocks were freed between a request that failed and the next allocation.

    If a forward fails, so that no backward follows, these are what autograd had saved.
    """
    failed = np.flatnonzero(action == Action.OOM)
    born = np.append(np.flatnonzero(action == Action.ALLOC), NEVER)
    found = np.zeros(lives.alloc_index.shape, dtype=np.bool_)
    for after, until in zip(failed.tolist(), born[np.searchsorted(born, failed)].tolist(), strict=True):
        found |= (lives.free_requested_index > after) & (lives.free_requested_index < until)
    return found
