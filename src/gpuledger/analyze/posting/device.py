"""The history of one device: its events in order, the lifetimes of its blocks, and their owners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.owners import Owners, find_owners, spread_tags, with_held_steps
from gpuledger.analyze.posting.replay import AllocatorSettings, OpenState, Replay, replay
from gpuledger.model.journal.journal import REASONS, Action
from gpuledger.model.journal.reading import Journal
from gpuledger.model.pools import UNKNOWN_POOL
from gpuledger.model.recorder_kind import RecorderKind

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Events:
    """Events of one device in order. ``tag_id`` is -1 if the allocating thread had no tag."""

    action: NDArray[np.int8]
    address: I64
    bytes: I64
    stream: I64
    time_ns: I64
    tag_id: I64
    stack_id: I64
    operator_id: I64

    @property
    def count(self) -> int:
        """Return the number of events."""
        return int(self.action.size)


@dataclass(frozen=True)
class Counts:
    """Maps pairs of counter values to positions among the events.

    ``alloc_at[k]`` is the index of the k-th allocation since the recording began, ``free_at`` the same for frees.
    ``alloc_base`` and ``free_base`` are the counters at that time.
    """

    alloc_at: I64
    free_at: I64
    alloc_base: int
    free_base: int

    def index_of(self, alloc_count: I64, free_count: I64) -> I64:
        """Return the index of the last event that the two counters include; -1 if they include none."""
        return np.maximum(
            _last(self.alloc_at, alloc_count - self.alloc_base), _last(self.free_at, free_count - self.free_base)
        )


def _last(positions: I64, counts: I64) -> I64:
    if positions.size == 0:
        return np.full(counts.shape, -1, dtype=np.int64)
    clipped = np.clip(counts, 0, positions.size)
    return np.where(clipped > 0, positions[np.maximum(clipped - 1, 0)], -1).astype(np.int64)


@dataclass(frozen=True)
class DeviceHistory:
    """All data of one device, before table rows are built."""

    device_idx: int
    events: Events
    counts: Counts
    lives: Replay
    owners: Owners
    pool_of_segment: dict[int, str]
    pool_id: NDArray[np.int32]


def device_histories(journal: Journal) -> list[DeviceHistory]:
    """Return the history of every device in the journal, by device index."""
    found: set[int] = set()
    for table in ("events", "snapshots", "counters"):
        found |= {int(number) for number in np.unique(journal.tables[table]["device_idx"])}
    if not found and journal.rows("steps"):  # the memory recording never began: the journal has step times only
        found = {int(device["device_idx"]) for device in (journal.facts.get("devices") or [])[:1]}
    return [_device_history(journal, device_idx) for device_idx in sorted(found)]


def _device_history(journal: Journal, device_idx: int) -> DeviceHistory:
    events = _events_of(journal, device_idx)
    opening = _opening(journal, device_idx)
    settings = AllocatorSettings.from_snapshot(journal.facts.get("allocator_settings") or {})
    sizes_given = not RecorderKind(journal.facts.get("recorder") or "").has_segments
    lives = replay(
        events.action, events.address, events.bytes, events.stream, opening, settings, sizes_given=sizes_given
    )
    counts = _counts(journal, device_idx, events)
    tags = with_held_steps(journal, spread_tags(journal, events.tag_id), events.time_ns)
    owners = find_owners(journal, device_idx, tags, events.stack_id, counts.index_of, lives, events.action)
    pools = segment_pools(journal, device_idx)
    return DeviceHistory(
        device_idx, events, counts, lives, owners, pools, find_pool_ids(journal, device_idx, lives.address)
    )


def _events_of(journal: Journal, device_idx: int) -> Events:
    table = journal.tables["events"]
    mine = table["device_idx"] == device_idx
    return Events(
        action=table["action"][mine],
        address=table["address"][mine],
        bytes=table["bytes"][mine],
        stream=table["stream"][mine],
        time_ns=table["time_ns"][mine],
        tag_id=table["tag_id"][mine].astype(np.int64),
        stack_id=table["stack_id"][mine].astype(np.int64),
        operator_id=table["operator_id"][mine].astype(np.int64),
    )


def _opening(journal: Journal, device_idx: int) -> OpenState | None:
    snapshots = journal.tables["snapshots"]
    mine = (snapshots["device_idx"] == device_idx) & (snapshots["reason"] == REASONS.index("open"))
    if not mine.any():
        return None
    number = int(snapshots["snapshot_id"][mine][0])
    segments, blocks = (
        _rows_of(journal, name, number, device_idx) for name in ("snapshot_segments", "snapshot_blocks")
    )
    stream_of = dict(zip(segments["address"].tolist(), segments["stream"].tolist(), strict=True))
    return OpenState(
        segments=np.stack([segments[c].astype(np.int64) for c in ("address", "bytes", "stream", "expandable")], axis=1),
        blocks=np.stack([blocks[c].astype(np.int64) for c in ("address", "bytes", "requested_bytes", "state")], axis=1),
        block_stream=np.array([stream_of.get(a, 0) for a in blocks["segment_address"].tolist()], dtype=np.int64),
    )


def _rows_of(journal: Journal, name: str, snapshot_id: int, device_idx: int) -> dict[str, NDArray[Any]]:
    table = journal.tables[name]
    mine = (table["snapshot_id"] == snapshot_id) & (table["device_idx"] == device_idx)
    return {column: values[mine] for column, values in table.items()}


def _counts(journal: Journal, device_idx: int, events: Events) -> Counts:
    counters = journal.tables["counters"]
    opened = (counters["device_idx"] == device_idx) & (counters["reason"] == REASONS.index("open"))
    return Counts(
        alloc_at=np.flatnonzero(events.action == Action.ALLOC),
        free_at=np.flatnonzero(events.action == Action.FREE_REQUESTED),
        alloc_base=int(counters["alloc_count"][opened][0]) if opened.any() else 0,
        free_base=int(counters["free_count"][opened][0]) if opened.any() else 0,
    )


def segment_pools(journal: Journal, device_idx: int) -> dict[int, str]:
    """Return ``segment address -> small, large or expandable`` from all snapshots."""
    table = journal.tables["snapshot_segments"]
    mine = table["device_idx"] == device_idx
    return {
        int(address): "expandable" if expandable else "small" if small else "large"
        for address, small, expandable in zip(
            table["address"][mine], table["small"][mine], table["expandable"][mine], strict=True
        )
    }


def find_pool_ids(journal: Journal, device_idx: int, address: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the pool of the block at each ``address``, as in ``blocks.pool_id``; :data:`UNKNOWN_POOL` if not known.

    Source: the segments of all snapshots. An address that was in segments of different pools counts as unknown.
    """
    found = np.full(address.size, UNKNOWN_POOL, dtype=np.int32)
    doubtful = np.zeros(address.size, dtype=bool)
    table = journal.tables["snapshot_segments"]
    for number in np.unique(table["snapshot_id"]):
        mine = (table["device_idx"] == device_idx) & (table["snapshot_id"] == number)
        order = np.argsort(table["address"][mine])
        starts, sizes, pools = (table[name][mine][order] for name in ("address", "bytes", "pool_id"))
        place = np.searchsorted(starts, address, side="right") - 1
        inside = (place >= 0) & (address < (starts + sizes)[place]) if starts.size else np.zeros(address.size, bool)
        seen = pools[place[inside]].astype(np.int32)
        doubtful[inside] |= (found[inside] != UNKNOWN_POOL) & (found[inside] != seen)
        found[inside] = seen
    found[doubtful] = UNKNOWN_POOL
    return found


def pools_of_graphs(journal: Journal) -> list[dict[str, Any]] | None:
    """Return the pools with memory of captured CUDA graphs, as :class:`~gpuledger.model.pools.GraphPoolFacts`.

    None if the recorder does not report which pools these are.

    Source: the segments of the last snapshot.
    """
    captured = journal.facts.get("captured_pools")
    snapshots = journal.tables["snapshots"]
    if captured is None or not snapshots["snapshot_id"].size:
        return None
    opening = snapshots["snapshot_id"][snapshots["reason"] == REASONS.index("open")]
    first, last = (int(opening.min()) if opening.size else -1), int(snapshots["snapshot_id"].max())
    table = journal.tables["snapshot_segments"]
    rows = list(zip(*(table[name].tolist() for name in ("snapshot_id", "device_idx", "pool_id")), strict=True))
    older = {(device_idx, pool) for snapshot, device_idx, pool in rows if snapshot == first}
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for (snapshot, device_idx, pool), address, size in zip(
        rows, table["address"].tolist(), table["bytes"].tolist(), strict=True
    ):
        if snapshot == last and pool in captured:
            found.setdefault((device_idx, pool), []).append((address, size))
    return [
        {"device_idx": key[0], "pool_id": key[1], "segments": sorted(segments), "is_older": key in older}
        for key, segments in sorted(found.items())
    ]
