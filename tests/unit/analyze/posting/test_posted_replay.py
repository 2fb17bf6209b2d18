"""Segments that grow and shrink in pieces, as the replay of a history has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuledger.analyze.posting.replay import NEVER, AllocatorSettings, OpenState, Replay, replay
from gpuledger.model.journal.journal import Action, BlockState

PIECE = 20 << 20
START = 1 << 40


def replayed(*events: tuple[Action, int, int]) -> Replay:
    """Return the replay of ``(action, address, bytes)``."""
    action, address, size = (np.array(column) for column in zip(*events, strict=True))
    return replay(action.astype(np.int8), address, size, np.zeros(len(events), np.int64), None, AllocatorSettings())


def pieces(found: Replay) -> list[tuple[int, int, int]]:
    """Return the pieces of segments that are mapped at the end: offset and length, and the event that made them."""
    alive = found.segment_free_index == NEVER
    columns = (found.segment_address[alive] - START, found.segment_bytes[alive], found.segment_alloc_index[alive])
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize(
    ("offset", "length", "left"),
    [
        (0, PIECE, [(PIECE, 3 * PIECE, 1)]),
        (3 * PIECE, PIECE, [(0, 3 * PIECE, 1)]),
        (PIECE, 2 * PIECE, [(0, PIECE, 1), (3 * PIECE, PIECE, 1)]),
        (0, 4 * PIECE, []),
    ],
)
def test_what_is_unmapped_leaves_the_pieces_beside_it(
    offset: int, length: int, left: list[tuple[int, int, int]]
) -> None:
    found = replayed((Action.SEGMENT_MAP, START, 4 * PIECE), (Action.SEGMENT_UNMAP, START + offset, length))
    assert pieces(found) == left
    assert found.unmatched_events == 0
    assert found.segment_free_index[found.segment_alloc_index == 0].tolist() == [1]


def test_a_piece_that_is_unmapped_is_no_longer_free_and_the_others_are() -> None:
    """A block in what remains gets the size up to the piece that is gone."""
    found = replayed(
        (Action.SEGMENT_MAP, START, 3 * PIECE),
        (Action.SEGMENT_UNMAP, START + PIECE, PIECE),
        (Action.ALLOC, START, PIECE - 256),
        (Action.ALLOC, START + 2 * PIECE, PIECE - 256),
    )
    assert found.allocated_bytes.tolist() == [PIECE, PIECE]
    assert found.unmatched_events == 0


@pytest.mark.parametrize("offset", [PIECE, -PIECE])
def test_unmapping_what_is_not_mapped_is_counted_and_changes_nothing(offset: int) -> None:
    found = replayed((Action.SEGMENT_MAP, START, PIECE), (Action.SEGMENT_UNMAP, START + offset, PIECE))
    assert found.unmatched_events == 1
    assert pieces(found) == [(0, PIECE, 0)]


def test_a_segment_is_released_whole_or_the_event_is_counted() -> None:
    whole = replayed((Action.SEGMENT_ALLOC, START, PIECE), (Action.SEGMENT_FREE, START, PIECE))
    assert (whole.unmatched_events, pieces(whole)) == (0, [])
    used = replayed(
        (Action.SEGMENT_ALLOC, START, PIECE), (Action.ALLOC, START, 512), (Action.SEGMENT_FREE, START, PIECE)
    )
    assert used.unmatched_events == 1
    unknown = replayed((Action.SEGMENT_FREE, START, PIECE))
    assert unknown.unmatched_events == 1


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ({}, AllocatorSettings()),
        ({"expandable_segments": True}, AllocatorSettings(expandable=True)),
        ({"max_split_size": 64 << 20}, AllocatorSettings(max_split_bytes=64 << 20)),
        ({"max_split_size": -1}, AllocatorSettings()),
        ({"max_split_size": 0}, AllocatorSettings()),
        ({"max_split_size": (1 << 64) - 1}, AllocatorSettings()),
    ],
)
def test_what_a_snapshot_does_not_say_is_pytorchs_default(kept: dict[str, Any], expected: AllocatorSettings) -> None:
    assert AllocatorSettings.from_snapshot(kept) == expected


def test_a_block_that_waits_when_the_recording_begins_was_freed_before_it() -> None:
    blocks = np.array([[START, 512, 500, BlockState.AWAITING_FREE]], dtype=np.int64)
    segments = np.array([[START, PIECE, 0, 0]], dtype=np.int64)
    opening = OpenState(segments, blocks, np.zeros(1, np.int64))
    none = np.zeros(0, np.int64)
    found = replay(none.astype(np.int8), none, none, none, opening, AllocatorSettings())
    assert found.free_requested_index.tolist() == [-1]
    assert found.free_index.tolist() == [NEVER]


@pytest.mark.parametrize(
    "action",
    [
        Action.ALLOC,  # of memory that no segment has
        Action.FREE_REQUESTED,
        Action.FREE_COMPLETED,
        Action.SEGMENT_FREE,
        Action.SEGMENT_UNMAP,
    ],
)
def test_each_event_that_does_not_fit_is_counted_once(action: Action) -> None:
    assert replayed(*((action, START + place * PIECE, 512) for place in range(3))).unmatched_events == 3


def test_a_block_in_place_of_another_one_is_counted_once() -> None:
    events = np.full(4, Action.ALLOC, dtype=np.int8), np.full(4, START), np.full(4, 512), np.zeros(4, np.int64)
    assert replay(*events, None, AllocatorSettings(), sizes_given=True).unmatched_events == 3
