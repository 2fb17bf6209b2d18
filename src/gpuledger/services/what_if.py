"""Replay the last events before an out-of-memory error with other settings of the allocator, up to the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gpuledger.model.flight_facts import FailedAllocation
    from gpuledger.model.run import Rank

VETOES = (
    (("expandable_segments:True", "max_split_size_mb"), "can reserve many times more (pytorch#193400)"),
    (("expandable_segments:True", "graphs"), "can hang with CUDA graphs and NCCL (pytorch#158029)"),
)
"""Words of a setting and of the process, and the hazard of having all of them."""

_ALLOC, _FREE = "alloc", "free_requested"


@dataclass(frozen=True)
class Verdict:
    """Whether a failed request would have fitted with a setting; None if unknown. ``note`` says why, or a hazard."""

    alloc_conf: str
    fits: bool | None
    note: str = ""


@dataclass(frozen=True)
class _Replayed:
    """The events to replay: ``(address, bytes or -1 to free, stream)``, after the blocks that were alive before."""

    before: list[tuple[int, int, int]]
    events: list[tuple[int, int, int]]
    capacity_bytes: int
    tried_bytes: int
    stream: int


def failure_verdicts(rank: Rank, failure: FailedAllocation) -> tuple[Verdict, ...]:
    """Return a verdict for each candidate setting, and first for the run's own.

    Source: the allocator's snapshot and last events at the error, replayed in the simulated allocator. Blocks that were
    alive before the first of these events are allocated first, in the order of their addresses.
    """
    from gpuledger.simulate.estimate.what_if import CANDIDATES

    own = failure.alloc_conf
    replayed = _events(rank, failure)
    settings = [own, *(one for one in CANDIDATES if one != own)]
    if replayed is None:
        return tuple(Verdict(one, None, "the last events before the error were not recorded") for one in settings)
    fails = _fits(replayed, own) is False
    process = "graphs" if _has_private_pools(rank, failure) else ""
    found = [Verdict(own, False, "the run's own setting")]
    for conf in settings[1:]:
        veto = next((text for words, text in VETOES if all(word in f"{conf},{process}" for word in words)), "")
        note = veto or ("" if fails else "the replay does not fail with the run's own setting either")
        found.append(Verdict(conf, _fits(replayed, conf) if fails else None, note))
    return tuple(found)


def _fits(replayed: _Replayed, alloc_conf: str) -> bool | None:
    """Return whether every request and the failed one can be served; None if the setting is not simulated."""
    from gpuledger.errors import UsageError
    from gpuledger.simulate.allocator.alloc_conf import parse_alloc_conf
    from gpuledger.simulate.allocator.allocator import CachingAllocator
    from gpuledger.simulate.allocator.pools import Limits, OutOfMemoryError

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


def _events(rank: Rank, failure: FailedAllocation) -> _Replayed | None:
    rows = _rows(rank, "failure_events", failure, ("action", "address", "bytes", "stream"))
    events = [(row["address"], row["bytes"], row["stream"], row["action"]) for row in rows]
    made: set[int] = set()
    before: dict[int, tuple[int, int]] = {}
    kept = []
    for address, size, stream, action in events:
        if action == _ALLOC:
            made.add(address)
            kept.append((address, size, stream))
        elif action == _FREE:
            if address not in made:
                before.setdefault(address, (size, stream))
            made.discard(address)
            kept.append((address, -1, stream))
    blocks = _rows(rank, "failure_blocks", failure, ("segment_address", "address", "requested_bytes", "state"))
    segments = _rows(rank, "failure_segments", failure, ("address", "bytes", "stream"))
    stream_of = {row["address"]: row["stream"] for row in segments}
    for row in blocks:
        if row["state"] == "allocated" and row["address"] not in made:
            before.setdefault(row["address"], (row["requested_bytes"], stream_of.get(row["segment_address"], 0)))
    if not kept or not failure.tried_bytes:
        return None
    reserved = sum(row["bytes"] for row in segments)
    capacity = reserved + (failure.free_bytes or 0)
    streams = [stream for _, _, stream in kept]
    usual = int(np.bincount(np.unique(streams, return_inverse=True)[1]).argmax())
    return _Replayed(
        [(address, size, stream) for address, (size, stream) in sorted(before.items())],
        kept,
        min(capacity, failure.total_bytes or capacity),
        failure.tried_bytes,
        int(np.unique(streams)[usual]),
    )


def _has_private_pools(rank: Rank, failure: FailedAllocation) -> bool:
    return any(row["pool_id"] for row in _rows(rank, "failure_segments", failure, ("pool_id",)))


def _rows(rank: Rank, table: str, failure: FailedAllocation, names: tuple[str, ...]) -> list[dict[str, Any]]:
    import pyarrow.compute as pc

    found = rank.table(table, ("failure_id", *names))
    rows: list[dict[str, int | str]] = found.filter(
        pc.equal(found.column("failure_id"), failure.failure_id)
    ).to_pylist()
    return rows
