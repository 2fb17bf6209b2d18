"""Compare the replay with the allocator's own counters. Each check stores both values, whether they agree or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.replay import NEVER
from gpuledger.model.journal.journal import REASONS, BlockState
from gpuledger.model.journal.reading import Journal

if TYPE_CHECKING:
    from gpuledger.analyze.posting.device import DeviceHistory


def check_device(history: DeviceHistory, journal: Journal) -> list[dict[str, Any]]:
    """Return ``{name, device_idx, expected, found, ok}`` for every possible check of one device.

    ``expected`` is the allocator's own value, ``found`` the value from the replay.
    """
    checks = [
        *_check_counters(history, journal),
        *_check_peak(history, journal),
        *_check_closing_snapshot(history, journal),
        _check(
            "events that fit the replayed state",
            history.events.count,
            history.events.count - history.lives.unmatched_events,
        ),
    ]
    return [{"device_idx": history.device_idx, **check} for check in checks]


def _check(name: str, expected: int, found: int) -> dict[str, Any]:
    return {"name": name, "expected": int(expected), "found": int(found), "ok": int(expected) == int(found)}


def running_bytes(
    history: DeviceHistory, freed_index: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the bytes in use after each event, int64[events + 1].

    Entry 0 is the state at the start of the recording.
    """
    held = np.zeros(history.events.count + 1, dtype=np.int64)
    np.add.at(held, history.lives.alloc_index + 1, sizes)
    gone = (freed_index != NEVER) & (freed_index >= 0)
    np.subtract.at(held, freed_index[gone] + 1, sizes[gone])
    already = freed_index == -1
    held[0] -= sizes[already].sum()
    return np.cumsum(held)


def _check_counters(history: DeviceHistory, journal: Journal) -> list[dict[str, Any]]:
    table = journal.tables["counters"]
    mine = np.flatnonzero((table["device_idx"] == history.device_idx) & (table["reason"] != REASONS.index("exit")))
    if not mine.size:
        return []
    allocated = running_bytes(history, history.lives.free_requested_index, history.lives.allocated_bytes)
    active = running_bytes(history, history.lives.free_index, history.lives.allocated_bytes)
    # the allocator subtracts requested bytes when a block is free again, allocated bytes when its free is requested
    requested = running_bytes(history, history.lives.free_index, history.lives.requested_bytes)
    at = history.counts.index_of(table["alloc_count"][mine], table["free_count"][mine]) + 1
    checks = []
    for row, place in zip(mine.tolist(), at.tolist(), strict=True):
        where = f"{REASONS[table['reason'][row]]}, step {table['step'][row]}"
        checks.append(_check(f"allocated bytes at {where}", table["allocated_bytes"][row], allocated[place]))
        span = requested[place : _next_change(history, place) + 1].tolist()
        expected = int(table["requested_bytes"][row])
        checks.append(_check(f"requested bytes at {where}", expected, expected if expected in span else span[0]))
        if table["reason"][row] == REASONS.index("close"):
            span = active[max(place, _first_after(history, int(table["t_ns"][row]))) :].tolist()
            expected = int(table["active_bytes"][row])
            checks.append(_check(f"active bytes at {where}", expected, expected if expected in span else span[-1]))
    last = mine[-1]
    done = int(table["alloc_count"][last]) - history.counts.alloc_base
    found = np.searchsorted(history.counts.alloc_at, at[-1] - 1, "right")
    if journal.facts.get("closed"):
        certain = np.searchsorted(history.counts.alloc_at, _first_after(history, int(table["t_ns"][last])))
        found = history.counts.alloc_at.size
        found = done if certain <= done <= found else found
    checks.append(_check("allocations recorded", done, int(found)))
    return checks


def _first_after(history: DeviceHistory, t_ns: int) -> int:
    """Return the index of the first event after the closing counters were read.

    The program pauses meanwhile, but its other threads go on.
    """
    return int(np.searchsorted(np.maximum.accumulate(history.events.time_ns), t_ns, "right"))


def _next_change(history: DeviceHistory, place: int) -> int:
    """Return the index of the state before the next allocation or requested free.

    A counter sample is placed by the counts of these two events only. They do not distinguish it from the states after
    frees that complete right afterwards.
    """
    later = [
        int(positions[np.searchsorted(positions, place)])
        for positions in (history.counts.alloc_at, history.counts.free_at)
        if positions.size and positions[-1] >= place
    ]
    return min(later, default=history.events.count)


def _check_peak(history: DeviceHistory, journal: Journal) -> list[dict[str, Any]]:
    """Compare peaks, if the allocator's peak counter covers exactly the recorded steps."""
    table = journal.tables["counters"]
    mine = table["device_idx"] == history.device_idx
    opened, closed = (mine & (table["reason"] == REASONS.index(name)) for name in ("open", "close"))
    if not (opened.any() and closed.any()) or table["alloc_count"][opened][0] or not history.events.count:
        return []
    allocated = running_bytes(history, history.lives.free_requested_index, history.lives.allocated_bytes)
    expected, found = int(table["peak_allocated_bytes"][closed][-1]), int(allocated.max())
    if expected < found:
        return []  # the program has reset the peak statistics itself
    return [_check("peak allocated bytes", expected, found)]


def _check_closing_snapshot(history: DeviceHistory, journal: Journal) -> list[dict[str, Any]]:
    snapshots = journal.tables["snapshots"]
    mine = (snapshots["device_idx"] == history.device_idx) & (snapshots["reason"] == REASONS.index("close"))
    if not mine.any():
        return []
    blocks = journal.tables["snapshot_blocks"]
    rows = (blocks["snapshot_id"] == snapshots["snapshot_id"][mine][-1]) & (blocks["device_idx"] == history.device_idx)
    rows &= blocks["state"] == BlockState.ALLOCATED
    live = history.lives.free_requested_index == NEVER
    given = dict(
        zip(
            history.lives.address[live].tolist(),
            zip(
                history.lives.allocated_bytes[live].tolist(), history.lives.requested_bytes[live].tolist(), strict=True
            ),
            strict=True,
        )
    )
    same = sum(
        given.get(address) == (allocated, requested)
        for address, allocated, requested in zip(
            blocks["address"][rows].tolist(),
            blocks["bytes"][rows].tolist(),
            blocks["requested_bytes"][rows].tolist(),
            strict=True,
        )
    )
    return [
        _check("live blocks of the closing snapshot found with the same sizes", int(rows.sum()), same),
        _check("live blocks at the close", int(rows.sum()), int(live.sum())),
    ]
