"""Replay the last events before an out-of-memory error with other settings of the allocator, up to the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.analyze.allocator.alloc_conf import CANDIDATES, parse_alloc_conf
from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.analyze.allocator.pools import Limits, OutOfMemoryError
from gpuledger.errors import UsageError
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.model.flight_facts import FailedAllocation
    from gpuledger.model.run import Rank

HAZARDS = (
    (("expandable_segments:True", "max_split_size_mb"), "can reserve many times more (pytorch#193400)"),
    (("expandable_segments:True", "graphs"), "can hang with CUDA graphs and NCCL (pytorch#158029)"),
)
"""Words of a setting and of the process, and the hazard of having all of them."""

MOST_EVENTS = 100_000
"""Recorded requests that are replayed."""

_ALLOC, _FREE = "alloc", "free_requested"


@dataclass(frozen=True)
class Verdict:
    """Whether a failed request would have fitted with a setting; None if unknown. ``note`` says why, or a hazard."""

    alloc_conf: str
    fits: bool | None
    note: str = ""


@dataclass(frozen=True)
class _Replayed:
    """The events to replay: ``(address, bytes or -1 to free, stream)``, after the blocks that were alive before.

    ``live_bytes`` were in use at the error, without rounding. ``capacity_bytes`` is what the process may reserve, None
    if unknown.
    """

    before: list[tuple[int, int, int]]
    events: list[tuple[int, int, int]]
    live_bytes: int
    capacity_bytes: int | None
    tried_bytes: int
    stream: int


def failure_verdicts(rank: Rank, failure: FailedAllocation) -> tuple[Verdict, ...]:
    """Return a verdict for each candidate setting, and first for the run's own.

    No setting can make a request fit that is larger than what the process may reserve, without the bytes in use.

    Source: the allocator's snapshot at the error, and its last events or the recorded ones, replayed in the simulated
    allocator. Blocks that were alive before the first of these events are allocated first, in the order of their
    addresses.
    """
    own = failure.alloc_conf
    others = [one for one in CANDIDATES if one != own]
    replayed = _read(rank, failure)
    first = Verdict(own, False, "the run's own setting")
    short = None if replayed is None else _missing_bytes(replayed)
    if short is not None:
        note = f"{format_bytes(short)} are missing with every setting"
        return (first, *(Verdict(one, False, note) for one in others))
    if replayed is None or not replayed.events:
        return (first, *(Verdict(one, None, "the last events before the error were not recorded") for one in others))
    if _fits(replayed, own) is not False:
        note = "the replay does not fail with the run's own setting either"
        return (first, *(Verdict(one, None, note) for one in others))
    process = "graphs" if _has_private_pools(rank, failure) else ""
    return (first, *(Verdict(one, _fits(replayed, one), _hazard(f"{one},{process}")) for one in others))


def _hazard(words: str) -> str:
    return next((text for needed, text in HAZARDS if all(word in words for word in needed)), "")


def _missing_bytes(replayed: _Replayed) -> int | None:
    """Return how many bytes too few there are without any rounding or fragmentation; None if there are enough."""
    if replayed.capacity_bytes is None:
        return None
    missing = replayed.live_bytes + replayed.tried_bytes - replayed.capacity_bytes
    return missing if missing > 0 else None


def _fits(replayed: _Replayed, alloc_conf: str) -> bool | None:
    """Return whether every request and the failed one can be served; None if the setting is not simulated."""
    try:
        allocator = CachingAllocator(parse_alloc_conf(alloc_conf), Limits(replayed.capacity_bytes))
    except UsageError:
        return None
    places: dict[int, int] = {}
    try:
        for address, size, stream in (*replayed.before, *replayed.events):
            if size >= 0:
                places[address] = allocator.malloc(size, stream)
            elif address in places:
                allocator.free(places.pop(address))
        allocator.malloc(replayed.tried_bytes, replayed.stream)
    except OutOfMemoryError:
        return False
    return True


def _read(rank: Rank, failure: FailedAllocation) -> _Replayed | None:
    """Return what to replay; None if the size of the request or the memory in use was not recorded."""
    blocks = _rows(rank, "failure_blocks", failure, ("segment_address", "address", "requested_bytes", "state"))
    segments = _rows(rank, "failure_segments", failure, ("address", "bytes", "stream"))
    if not (blocks and failure.tried_bytes):
        return None
    last = _rows(rank, "failure_events", failure, ("action", "address", "bytes", "stream"))
    if not last:
        in_use = {row["address"] for row in blocks if row["state"] == "allocated"}
        last = _recorded_events(rank, failure, in_use)
    made, before, kept = _events(last)
    stream_of = {row["address"]: row["stream"] for row in segments}
    live_bytes = 0
    for row in blocks:
        if row["state"] == "allocated":
            live_bytes += row["requested_bytes"]
            if row["address"] not in made:
                before.setdefault(row["address"], (row["requested_bytes"], stream_of.get(row["segment_address"], 0)))
    reserved = sum(row["bytes"] for row in segments)
    free, total = failure.free_bytes, failure.total_bytes
    known = [one for one in (None if free is None else reserved + free, total) if one]
    streams, counts = np.unique([stream for _, _, stream in kept] or [0], return_counts=True)
    return _Replayed(
        [(address, size, stream) for address, (size, stream) in sorted(before.items())],
        kept,
        live_bytes,
        min(known, default=None),
        failure.tried_bytes,
        int(streams[counts.argmax()]),
    )


def _recorded_events(rank: Rank, failure: FailedAllocation, in_use: set[int]) -> list[dict[str, Any]]:
    """Return the last recorded requests before an error in the recorded steps, as rows of ``failure_events``.

    The allocator keeps its last events only after the recorded steps. Returns nothing if the recorded blocks are not
    those ``in_use`` at the error, by their addresses.
    """
    names = ("address", "requested_bytes", "stream", "alloc_index", "alloc_ns", "free_requested_index")
    table = rank.table("blocks", ("device_idx", *names, "free_requested_ns"))
    columns = {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}
    mine = columns["device_idx"] == failure.device_idx
    until_ns = failure.t_ns or 0
    made = mine & ((columns["alloc_index"] < 0) | (columns["alloc_ns"] <= until_ns))
    freed = made & (columns["free_requested_ns"] <= until_ns)
    if set(columns["address"][made & ~freed].tolist()) != in_use:
        return []
    found = []
    for action, index, which in ((_ALLOC, "alloc_index", made), (_FREE, "free_requested_index", freed)):
        which = which & (columns[index] >= 0)
        size_and_stream = ("address", "requested_bytes", "stream")
        for place, *values in zip(*(columns[name][which].tolist() for name in (index, *size_and_stream)), strict=True):
            found.append((place, action, *values))
    rows = sorted(found)[-MOST_EVENTS:]
    return [dict(zip(("action", "address", "bytes", "stream"), row[1:], strict=True)) for row in rows]


def _events(
    rows: list[dict[str, Any]],
) -> tuple[set[int], dict[int, tuple[int, int]], list[tuple[int, int, int]]]:
    """Return addresses that the events leave allocated, blocks that they free and did not allocate, and the events."""
    made: set[int] = set()
    before: dict[int, tuple[int, int]] = {}
    kept = []
    for row in rows:
        address, size, stream = row["address"], row["bytes"], row["stream"]
        if row["action"] == _ALLOC:
            made.add(address)
            kept.append((address, size, stream))
        elif row["action"] == _FREE:
            if address not in made:
                before.setdefault(address, (size, stream))
            made.discard(address)
            kept.append((address, -1, stream))
    return made, before, kept


def _has_private_pools(rank: Rank, failure: FailedAllocation) -> bool:
    return any(row["pool_id"] for row in _rows(rank, "failure_segments", failure, ("pool_id",)))


def _rows(rank: Rank, table: str, failure: FailedAllocation, names: tuple[str, ...]) -> list[dict[str, Any]]:
    import pyarrow.compute as pc

    found = rank.table(table, ("failure_id", *names))
    rows: list[dict[str, int | str]] = found.filter(
        pc.equal(found.column("failure_id"), failure.failure_id)
    ).to_pylist()
    return rows
