"""Replay the last events before an out-of-memory error up to the request: with another setting, size or GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.analyze.allocator.alloc_conf import CANDIDATES, parse_alloc_conf
from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.analyze.allocator.pools import AllocatorLimits, OutOfMemoryError
from gpuledger.analyze.memory.failures.failed_request import has_resident_data
from gpuledger.errors import UsageError
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.analyze.memory.failures.smaller_blocks import SmallerBlocks
    from gpuledger.model.flight_facts import FailedAllocation
    from gpuledger.model.run import Rank

HAZARDS = (
    (
        "expandable_segments:True",
        "max_split_size_mb",
        "not beside max_split_size_mb, which can reserve many times more (pytorch#193400)",
    ),
    (
        "max_split_size_mb",
        "expandable_segments:True",
        "not beside expandable_segments:True, which can reserve many times more (pytorch#193400)",
    ),
    ("expandable_segments:True", "graphs", "can hang with CUDA graphs and NCCL (pytorch#158029)"),
)
"""A word of a setting, a word of the run's own setting or of the process, and the hazard of having both."""

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

    ``live`` are the blocks in use at the error, with their bytes without rounding and their categories, by address. A
    whole data set has none: it does not get smaller with the batch.
    ``capacity_bytes`` is what the process may reserve, None if unknown.
    """

    before: list[tuple[int, int, int]]
    events: list[tuple[int, int, int]]
    live: dict[int, tuple[int, str]]
    capacity_bytes: int | None
    tried_bytes: int
    stream: int

    @property
    def live_bytes(self) -> int:
        """Return the bytes in use at the error."""
        return sum(size for size, _ in self.live.values())


class FailureReplay:
    """An error and its last requests, replayed with one change at a time in the simulated allocator.

    Source: the allocator's snapshot at the error, and its last events or the recorded ones. Blocks that were alive
    before the first of these events are allocated first, in the order of their addresses.
    """

    def __init__(self, rank: Rank, failure: FailedAllocation) -> None:
        self._rank, self._failure = rank, failure
        self._replayed = _read(rank, failure)

    @cached_property
    def unknown_reason(self) -> str:
        """Return why a replay shows nothing; "" if it does."""
        if self._replayed is None or not self._replayed.events:
            return "the last events before the error were not recorded"
        if self._fits(self._replayed) is not False:
            return "the replay does not fail with the run's own setting either"
        return ""

    def verdicts(self) -> tuple[Verdict, ...]:
        """Return a verdict for each candidate setting, and first for the run's own.

        No setting can make a request fit that is larger than what the process may reserve, without the bytes in use.
        """
        own = self._failure.alloc_conf
        others = [one for one in CANDIDATES if one != own]
        first = Verdict(own, False, "the run's own setting")
        short = None if self._replayed is None else _missing_bytes(self._replayed)
        if short is not None:
            note = f"{format_bytes(short)} are missing with every setting"
            return (first, *(Verdict(one, False, note) for one in others))
        if self._replayed is None or self.unknown_reason:
            return (first, *(Verdict(one, None, self.unknown_reason) for one in others))
        replayed = self._replayed
        process = "graphs" if _has_private_pools(self._rank, self._failure) else ""
        fits = {one: _fits(replayed, one) for one in others}
        return (first, *(Verdict(one, fits[one], _hazard(one, f"{own},{process}")) for one in others))

    def saved_bytes(self, change: SmallerBlocks) -> int:
        """Return how much less would be in use at the error."""
        live = {} if self._replayed is None else self._replayed.live
        return sum(size - change.left_bytes(size, category) for size, category in live.values())

    def fits_with(self, change: SmallerBlocks) -> bool | None:
        """Return whether the request would have fitted beside smaller blocks; None if that cannot be replayed.

        Blocks that were freed before the error keep their sizes, because their categories are not known.
        """
        if self._replayed is None:
            return None
        changed = _with_smaller(self._replayed, change)
        if _missing_bytes(changed) is not None:
            return False
        return None if self.unknown_reason else self._fits(changed)

    def fits_within(self, capacity_bytes: int) -> bool | None:
        """Return whether the request would have fitted if the process could reserve ``capacity_bytes``."""
        if self._replayed is None:
            return None
        changed = replace(self._replayed, capacity_bytes=capacity_bytes)
        if _missing_bytes(changed) is not None:
            return False
        return None if self.unknown_reason else self._fits(changed)

    def _fits(self, replayed: _Replayed) -> bool | None:
        return _fits(replayed, self._failure.alloc_conf)


def _with_smaller(replayed: _Replayed, change: SmallerBlocks) -> _Replayed:
    """Return what to replay after a change."""
    live = {address: (change.left_bytes(*one), one[1]) for address, one in replayed.live.items()}
    last = {address: number for number, (address, _, _) in enumerate(replayed.events)}
    events = [
        (address, live[address][0], stream)
        if size >= 0 and address in live and last[address] == number
        else (address, size, stream)
        for number, (address, size, stream) in enumerate(replayed.events)
    ]
    before = [
        (address, live[address][0] if address in live and address not in last else size, stream)
        for address, size, stream in replayed.before
    ]
    tried_bytes = round(replayed.tried_bytes * change.tried_share)
    return replace(replayed, before=before, events=events, live=live, tried_bytes=tried_bytes)


def _hazard(setting: str, process: str) -> str:
    return next((text for word, other, text in HAZARDS if word in setting and other in process), "")


def _missing_bytes(replayed: _Replayed) -> int | None:
    """Return how many bytes too few there are without any rounding or fragmentation; None if there are enough."""
    if replayed.capacity_bytes is None:
        return None
    missing = replayed.live_bytes + replayed.tried_bytes - replayed.capacity_bytes
    return missing if missing > 0 else None


def _fits(replayed: _Replayed, alloc_conf: str) -> bool | None:
    """Return whether every request and the failed one can be served; None if the setting is not simulated."""
    try:
        allocator = CachingAllocator(parse_alloc_conf(alloc_conf), AllocatorLimits(replayed.capacity_bytes))
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
    names = ("segment_address", "address", "requested_bytes", "state", "category", "phase")
    blocks = _rows(rank, "failure_blocks", failure, names)
    segments = _rows(rank, "failure_segments", failure, ("address", "bytes", "stream"))
    if not (blocks and failure.tried_bytes):
        return None
    last = _rows(rank, "failure_events", failure, ("action", "address", "bytes", "stream"))
    if not last:
        in_use = {row["address"] for row in blocks if row["state"] == "allocated"}
        last = _recorded_events(rank, failure, in_use)
    made, before, kept = _events(last)
    stream_of = {row["address"]: row["stream"] for row in segments}
    live: dict[int, tuple[int, str]] = {}
    for row in blocks:
        if row["state"] == "allocated":
            is_data = (row["category"], row["phase"]) == ("input", "setup") and has_resident_data(rank)
            live[row["address"]] = row["requested_bytes"], "" if is_data else row["category"] or ""
            if row["address"] not in made:
                before.setdefault(row["address"], (row["requested_bytes"], stream_of.get(row["segment_address"], 0)))
    reserved = sum(row["bytes"] for row in segments)
    free, total = failure.free_bytes, failure.total_bytes
    known = [one for one in (None if free is None else reserved + free, total) if one]
    streams, counts = np.unique([stream for _, _, stream in kept] or [0], return_counts=True)
    return _Replayed(
        [(address, size, stream) for address, (size, stream) in sorted(before.items())],
        kept,
        live,
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
