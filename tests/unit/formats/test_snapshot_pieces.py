"""Pieces of a snapshot's lives: ranges, events at an address, and what the trace leaves to be undone."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuledger.analyze.posting.replay import NEVER
from gpuledger.formats.snapshot.snapshot_lives import (
    MIN_ONE_SIDED,
    Closing,
    DeviceEvents,
    DeviceLives,
    _last_events,
    _Ranges,
    _segments_before,
    paired,
)
from gpuledger.model.journal.journal import Action, BlockState
from gpuledger.model.pools import UNKNOWN_POOL

ALLOC, REQUESTED, COMPLETED = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED


def trace_of(*events: tuple[Action, int, int], stream: int = 0) -> DeviceEvents:
    """Return a trace of ``(action, address, bytes)``; each event's time is its number."""
    action, address, size = (np.array(column, dtype=np.int64) for column in zip(*events, strict=True))
    nobody = np.full(action.size, -1, dtype=np.int64)
    streams = np.full(action.size, stream, dtype=np.int64)
    return DeviceEvents(action.astype(np.int8), address, size, streams, np.arange(action.size), nobody, nobody)


def closing_of(*segments: tuple[int, int, bool], blocks: tuple[tuple[int, BlockState], ...] = ()) -> Closing:
    """Return a snapshot of ``(address, bytes, expandable)`` in pools 10, 11, …, and blocks of ``(bytes, state)``."""
    address, size, expandable = np.array(segments, dtype=np.int64).reshape(-1, 3).T
    sizes, states = np.array(blocks, dtype=np.int64).reshape(-1, 2).T
    zeros = np.zeros(address.size, dtype=np.int64)
    none = np.zeros(sizes.size, dtype=np.int64)
    pools = 10 + np.arange(address.size)
    return Closing(address, size, zeros, pools, expandable.astype(bool), none, sizes, sizes, states, none, none, none)


def test_ranges_are_those_of_the_places_that_were_added_last() -> None:
    """Held to the stream of every single place."""
    random = np.random.default_rng(3)
    for _ in range(60):
        ranges, streams = _Ranges(), np.full(14, -1)
        for _ in range(8):
            low, high = sorted(random.choice(14, 2, replace=False).tolist())
            stream = int(random.integers(0, 2))
            if random.integers(0, 3):
                ranges.add(low, high, stream)
                streams[low:high] = stream
            else:
                ranges.remove(low, high)
                streams[low:high] = -1
            bounds = [0, *(np.flatnonzero(np.diff(streams)) + 1).tolist(), 14]
            pieces = pairwise(bounds)
            expected = [(start, end, int(streams[start])) for start, end in pieces if streams[start] >= 0]
            assert ranges.ranges == expected


def test_the_last_event_at_an_address_is_of_that_address_and_kind() -> None:
    events = ((ALLOC, 8, 1), (ALLOC, 4, 1), (REQUESTED, 12, 1), (ALLOC, 8, 1), (ALLOC, 0, 1))
    asked = np.array([0, 2, 4, 8, 12, 99])
    assert _last_events(trace_of(*events), ALLOC, asked).tolist() == [4, -1, 1, 3, -1, -1]
    assert _last_events(trace_of(*events), COMPLETED, asked).tolist() == [-1] * 6


@pytest.mark.parametrize(
    ("actions", "marker"),
    [((ALLOC, ALLOC), 1), ((Action.SNAPSHOT, ALLOC, ALLOC), 0), ((Action.SNAPSHOT, ALLOC, Action.SNAPSHOT, ALLOC), 2)],
)
def test_the_snapshot_is_at_its_last_event_or_at_the_end(actions: tuple[Action, ...], marker: int) -> None:
    trace = trace_of(*((action, 64 * number, 1 << number) for number, action in enumerate(actions)))
    assert trace.marker == marker
    lives: Any = SimpleNamespace(
        alloc_index=np.array([-1, marker, marker + 1, -1, -1]),
        free_requested_index=np.array([NEVER, NEVER, NEVER, marker, marker + 1]),
        allocated_bytes=np.array([1, 2, 4, 8, 16]),
    )
    closing = closing_of(blocks=((7, BlockState.ALLOCATED), (9, BlockState.AWAITING_FREE), (30, BlockState.ALLOCATED)))
    found = DeviceLives(0, trace, closing, lives, lives.alloc_index, lives.alloc_index)
    assert (found.replayed_bytes, found.shown_bytes, found.bytes_differ) == (1 + 2 + 16, 37, -18)


@pytest.mark.parametrize("kind", [REQUESTED, COMPLETED])
@pytest.mark.parametrize(
    ("count", "others", "is_one_sided"), [(MIN_ONE_SIDED, 0, True), (MIN_ONE_SIDED - 1, 0, False), (99, 1, False)]
)
def test_frees_of_one_kind_are_both_if_there_are_many(
    kind: Action, count: int, others: int, is_one_sided: bool
) -> None:
    other = COMPLETED if kind == REQUESTED else REQUESTED
    trace = trace_of((ALLOC, 1, 10), *[(kind, 2, 20)] * count, *[(other, 3, 30)] * others, (ALLOC, 4, 40))
    found = paired(trace)
    if not is_one_sided:
        assert found is trace
        return
    assert found.action.tolist() == [ALLOC, *[REQUESTED, COMPLETED] * count, ALLOC]
    assert found.address.tolist() == [1, *[2] * 2 * count, 4]
    assert found.time_ns.tolist() == [0, *np.repeat(np.arange(1, count + 1), 2), count + 1]


def test_a_block_is_of_the_pool_of_its_segment_unless_that_is_newer() -> None:
    trace = trace_of((ALLOC, 0, 1), (Action.SEGMENT_ALLOC, 200, 100), (ALLOC, 0, 1))
    places = [(99, -1), (100, -1), (199, 0), (200, 0), (200, 1), (299, 2), (300, 2)]
    address, born = np.array(places).T
    lives: Any = SimpleNamespace(address=address, alloc_index=born)
    for segments in (((100, 100, False), (200, 100, False)), ((200, 100, False), (100, 100, False))):
        found = DeviceLives(0, trace, closing_of(*segments), lives, born, born)
        first, second = (10, 11) if segments[0][0] == 100 else (11, 10)
        unknown = UNKNOWN_POOL
        assert found.pool_id.tolist() == [unknown, first, first, unknown, second, second, unknown]
    assert DeviceLives(0, trace, closing_of(), lives, born, born).pool_id.tolist() == [UNKNOWN_POOL] * 7


def test_the_segments_before_a_trace_are_those_of_the_snapshot_without_its_events() -> None:
    """What the trace has after the snapshot is not in it, so it is not undone either."""
    trace = trace_of(
        (Action.SEGMENT_FREE, 0, 50),
        (Action.SEGMENT_ALLOC, 100, 100),
        (Action.SEGMENT_ALLOC, 300, 100),
        (Action.SEGMENT_FREE, 300, 100),
        (Action.SEGMENT_MAP, 1_100, 100),
        (Action.SEGMENT_UNMAP, 1_300, 100),
        (Action.SNAPSHOT, 0, 0),
        (Action.SEGMENT_FREE, 500, 100),
    )
    closing = closing_of((100, 100, False), (200, 20, False), (1_000, 300, True))
    assert _segments_before(trace, closing) == [(0, 50, 0, 0), (200, 20, 0, 0), (1_000, 100, 0, 1), (1_200, 200, 0, 1)]
