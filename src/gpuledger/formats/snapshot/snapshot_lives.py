"""Lifetimes of a snapshot's blocks: undo its trace to find the state before it, and then replay the trace.

A snapshot has the exact state at its own time, and its trace has the events before. Undoing the trace from the end
gives the state at its start. A block that was freed in the trace gets its requested bytes, rounded up as in the
allocator. It also gets the rest behind it if the allocator would not have split that off. This is the case if the next
block or free range starts less than 1 MiB behind. A free range starts where the next allocation from it was placed.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.replay import SMALL_BYTES, AllocatorSettings, OpenState, Replay, replay
from gpuledger.model.journal.journal import Action, BlockState
from gpuledger.model.pools import UNKNOWN_POOL

I64 = NDArray[np.int64]
MIN_ONE_SIDED = 16
"""Minimum number of frees of one kind, without any of the other kind, that cannot be the end of a cut-off trace."""


@dataclass(frozen=True)
class DeviceEvents:
    """One device's events in order; each array has one element per event. Ids and times are -1 if unknown."""

    action: NDArray[np.int8]
    address: I64
    bytes: I64
    stream: I64
    time_ns: I64
    stack_id: I64
    text_id: I64

    @property
    def marker(self) -> int:
        """Return the index of the snapshot's own event; of the last event if there is none."""
        marks = np.flatnonzero(self.action == Action.SNAPSHOT)
        return int(marks[-1]) if marks.size else self.action.size - 1


@dataclass(frozen=True)
class Closing:
    """One device's segments and blocks as in the snapshot, by address.

    ``segment_pool`` is as ``blocks.pool_id``; :data:`UNKNOWN_POOL` if the snapshot does not have it.
    """

    segment_address: I64
    segment_bytes: I64
    segment_stream: I64
    segment_pool: I64
    expandable: NDArray[np.bool_]
    address: I64
    bytes: I64
    requested_bytes: I64
    state: I64
    stream: I64
    stack_id: I64
    text_id: I64


@dataclass(frozen=True)
class DeviceLives:
    """All data of one device. ``stack_id`` and ``text_id`` are by block of ``lives``, -1 if unknown."""

    device_idx: int
    trace: DeviceEvents
    closing: Closing
    lives: Replay
    stack_id: I64
    text_id: I64

    @property
    def pool_id(self) -> I64:
        """Return each block's pool: that of the segment around it; :data:`UNKNOWN_POOL` if there is none.

        A block from before the allocation of its segment was in an earlier segment at the same address.
        """
        closing, lives = self.closing, self.lives
        if not closing.segment_address.size:
            return np.full(lives.address.size, UNKNOWN_POOL, dtype=np.int64)
        order = np.argsort(closing.segment_address)
        first = closing.segment_address[order]
        place = order[np.maximum(np.searchsorted(first, lives.address, side="right") - 1, 0)]
        start, size = closing.segment_address[place], closing.segment_bytes[place]
        taken = _last_events(self.trace, Action.SEGMENT_ALLOC, closing.segment_address)
        shown = (lives.address >= start) & (lives.address < start + size) & (lives.alloc_index >= taken[place])
        return np.where(shown, closing.segment_pool[place], UNKNOWN_POOL)

    @property
    def bytes_differ(self) -> int:
        """Return the difference in bytes between the replayed live blocks and the snapshot's."""
        return self.replayed_bytes - self.shown_bytes

    @property
    def replayed_bytes(self) -> int:
        """Return the allocated bytes of the replay at the snapshot."""
        lives, at = self.lives, self.trace.marker
        live = (lives.alloc_index <= at) & (lives.free_requested_index > at)
        return int(lives.allocated_bytes[live].sum())

    @property
    def shown_bytes(self) -> int:
        """Return the allocated bytes in the snapshot."""
        return int(self.closing.bytes[self.closing.state == BlockState.ALLOCATED].sum())


def paired(trace: DeviceEvents) -> DeviceEvents:
    """Return the trace with both events of every free, if torch was set to record only one of them."""
    requested, completed = (
        int((trace.action == action).sum()) for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    )
    if min(requested, completed) or max(requested, completed) < MIN_ONE_SIDED:
        return trace
    frees = (trace.action == Action.FREE_REQUESTED) | (trace.action == Action.FREE_COMPLETED)
    times = np.where(frees, 2, 1)
    columns = {name: np.repeat(values, times) for name, values in vars(trace).items()}
    second = np.cumsum(times)[frees] - 1
    columns["action"][second - 1] = Action.FREE_REQUESTED
    columns["action"][second] = Action.FREE_COMPLETED
    return DeviceEvents(**columns)


def follow(device_idx: int, trace: DeviceEvents, closing: Closing, settings: AllocatorSettings) -> DeviceLives:
    """Return the lifetimes of one device's blocks and segments."""
    before = _Before(trace, closing, settings)
    opening = before.state()
    lives = replay(trace.action, trace.address, trace.bytes, trace.stream, opening, settings)
    known = before.stack_id.size

    def of_block(opening_ids: I64, event_ids: I64) -> I64:
        born = lives.alloc_index[known:]
        return np.concatenate((opening_ids, event_ids[born] if event_ids.size else born))

    return DeviceLives(
        device_idx,
        trace,
        closing,
        lives,
        stack_id=of_block(before.stack_id, trace.stack_id),
        text_id=of_block(before.text_id, trace.text_id),
    )


class _Before:
    """The blocks and segments at the start of the trace."""

    def __init__(self, trace: DeviceEvents, closing: Closing, settings: AllocatorSettings) -> None:
        self._settings = settings
        self._alloc_address, self._alloc_event = _by_address(trace, Action.ALLOC)
        self._done_address, self._done_event = _by_address(trace, Action.FREE_COMPLETED)
        self.segments = _segments_before(trace, closing)
        freed = _freed_first(trace)
        kept = _kept_from_before(trace, closing)
        columns = {
            "address": (trace.address[freed], closing.address[kept]),
            "requested": (trace.bytes[freed], closing.requested_bytes[kept]),
            "bytes": (np.array([settings.round_up(n) for n in trace.bytes[freed].tolist()]), closing.bytes[kept]),
            "state": (_state_before(trace, freed), closing.state[kept]),
            "stream": (trace.stream[freed], closing.stream[kept]),
            "stack_id": (np.full(freed.size, -1), closing.stack_id[kept]),
            "text_id": (np.full(freed.size, -1), closing.text_id[kept]),
            "exact": (np.zeros(freed.size), np.ones(kept.size)),
        }
        joined = {name: np.concatenate(parts).astype(np.int64) for name, parts in columns.items()}
        # A block that awaits its free in the snapshot is in both parts: size from the snapshot, state from the trace.
        order = np.lexsort((-joined["exact"], joined["address"]))
        twice = np.flatnonzero(np.diff(joined["address"][order]) == 0)
        joined["state"][order[twice]] = joined["state"][order[twice + 1]]
        chosen = np.delete(order, twice + 1)
        self.address, self.bytes = joined["address"][chosen], joined["bytes"][chosen]
        self.requested_bytes, self.state_code = joined["requested"][chosen], joined["state"][chosen]
        self.stream, self.stack_id = joined["stream"][chosen], joined["stack_id"][chosen]
        self.text_id, self._exact = joined["text_id"][chosen], joined["exact"][chosen].astype(bool)

    def state(self) -> OpenState:
        """Return the opening state for the replay: segments, blocks, and the free ranges between them."""
        segments = np.array(self.segments, dtype=np.int64).reshape(-1, 4)
        free: list[tuple[int, int, int, int]] = []
        for start, size, _, expandable in segments.tolist():
            low, high = np.searchsorted(self.address, (start, start + size))
            free += self._free_inside(int(low), int(high), start, start + size, bool(expandable))
        blocks = np.stack((self.address, self.bytes, self.requested_bytes, self.state_code), axis=1)
        rows = np.concatenate((blocks, np.array(free, dtype=np.int64).reshape(-1, 4)))
        return OpenState(segments, rows, np.concatenate((self.stream, np.zeros(len(free), dtype=np.int64))))

    def _free_inside(
        self, low: int, high: int, start: int, end: int, expandable: bool
    ) -> list[tuple[int, int, int, int]]:
        """Return the free ranges of one segment. A rest that the allocator does not split off is added to its block."""
        free, place = [], start
        for row in range(low, high + 1):
            until = int(self.address[row]) if row < high else end
            if place < until and row > low and not expandable:
                rest = self._uncut_rest(row - 1, place, until)
                self.bytes[row - 1] += rest
                place += rest
            if place < until:
                free.append((place, until - place, 0, int(BlockState.INACTIVE)))
            if row < high:
                place = max(place, until + int(self.bytes[row]))
        return free

    def _uncut_rest(self, row: int, place: int, until: int) -> int:
        """Return the bytes of ``[place, until)``, behind a block, that were not split off when it was allocated."""
        size = int(self.bytes[row])
        if self._exact[row] or size <= SMALL_BYTES:
            return 0
        rest = self._next_front(row, place, until) - place
        return 0 if self._settings.splits(size, rest) else rest

    def _next_front(self, row: int, place: int, until: int) -> int:
        """Return the address of the first allocation in ``[place, until)`` during the block's life; ``until`` if none.

        An allocation takes the front of a free range, and a free range behind a live block starts at the block's end.
        """
        done = int(np.searchsorted(self._done_address, self.address[row]))
        is_done = done < self._done_address.size and self._done_address[done] == self.address[row]
        low, high = np.searchsorted(self._alloc_address, (place, until))
        events = self._alloc_event[low:high]
        if not events.size or (is_done and events.min() > self._done_event[done]):
            return until
        return int(self._alloc_address[low + int(events.argmin())])


def _by_address(trace: DeviceEvents, action: Action) -> tuple[I64, I64]:
    """Return addresses and indices of the events of one kind, by address, then in order."""
    events = np.flatnonzero(trace.action == action)
    order = np.argsort(trace.address[events], kind="stable")
    return trace.address[events][order], events[order]


def _last_events(trace: DeviceEvents, action: Action, address: I64) -> I64:
    """Return the last event of one kind at each ``address``; -1 if there is none."""
    places, events = _by_address(trace, action)
    found = np.searchsorted(places, address, side="right") - 1
    last: I64 = np.concatenate((events, [-1]))[found]
    last[(found < 0) | (np.concatenate((places, [0]))[found] != address)] = -1
    return last


def _state_before(trace: DeviceEvents, freed: I64) -> I64:
    """Return the state of blocks before these events: awaiting free if only the free's completion is in the trace."""
    waiting = trace.action[freed] == Action.FREE_COMPLETED
    state: I64 = np.where(waiting, int(BlockState.AWAITING_FREE), int(BlockState.ALLOCATED))
    return state


def _freed_first(trace: DeviceEvents) -> I64:
    """Return the events that free a block without an allocation in the trace."""
    first = _first_events(trace)
    freed: I64 = first[trace.action[first] != Action.ALLOC]
    return freed


def _first_events(trace: DeviceEvents) -> I64:
    """Return the first event of a block at each address, by address."""
    about = np.flatnonzero(trace.action <= Action.FREE_COMPLETED)
    _, place = np.unique(trace.address[about], return_index=True)
    first: I64 = about[place]
    return first


def _kept_from_before(trace: DeviceEvents, closing: Closing) -> I64:
    """Return the live blocks of the snapshot that no allocation of the trace can have created: those from before it."""
    allocated = np.unique(trace.address[trace.action == Action.ALLOC])
    shown = np.flatnonzero(closing.state != BlockState.INACTIVE)
    kept: I64 = shown[~np.isin(closing.address[shown], allocated)]
    return kept


def _segments_before(trace: DeviceEvents, closing: Closing) -> list[tuple[int, int, int, int]]:
    """Return address, bytes, stream and expandable of the segments at the start of the trace."""
    whole: dict[int, tuple[int, int]] = {}
    mapped = _Ranges()
    for address, size, stream, expandable in zip(
        closing.segment_address.tolist(),
        closing.segment_bytes.tolist(),
        closing.segment_stream.tolist(),
        closing.expandable.tolist(),
        strict=True,
    ):
        if expandable:
            mapped.add(address, address + size, stream)
        else:
            whole[address] = (size, stream)
    wanted = (trace.action >= Action.SEGMENT_ALLOC) & (trace.action <= Action.SEGMENT_UNMAP)
    for event in np.flatnonzero(wanted[: trace.marker + 1])[::-1].tolist():
        action, address, size, stream = (
            int(values[event]) for values in (trace.action, trace.address, trace.bytes, trace.stream)
        )
        if action == Action.SEGMENT_ALLOC:
            whole.pop(address, None)
        elif action == Action.SEGMENT_FREE:
            whole[address] = (size, stream)
        elif action == Action.SEGMENT_MAP:
            mapped.remove(address, address + size)
        else:
            mapped.add(address, address + size, stream)
    rows = [(address, size, stream, 0) for address, (size, stream) in whole.items()]
    return sorted(rows + [(low, high - low, stream, 1) for low, high, stream in mapped.ranges])


class _Ranges:
    """Ranges of addresses that do not overlap, in order. Adjacent ranges of one stream are merged."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int, int]] = []

    def add(self, low: int, high: int, stream: int) -> None:
        self.remove(low, high)
        place = bisect_left(self.ranges, (low, high, stream))
        if place < len(self.ranges) and self.ranges[place][0] == high and self.ranges[place][2] == stream:
            high = self.ranges.pop(place)[1]
        if place and self.ranges[place - 1][1] == low and self.ranges[place - 1][2] == stream:
            place -= 1
            low = self.ranges.pop(place)[0]
        self.ranges.insert(place, (low, high, stream))

    def remove(self, low: int, high: int) -> None:
        first = max(bisect_left(self.ranges, (low, low, 0)) - 1, 0)
        last = bisect_left(self.ranges, (high, high, 0))
        left = [
            (start, end, stream)
            for from_, to, stream in self.ranges[first:last]
            for start, end in ((from_, min(to, low)), (max(from_, high), to))
            if start < end
        ]
        self.ranges[first:last] = left
