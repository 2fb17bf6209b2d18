"""Replayed sizes against an allocator that knows them: random requests, waiting frees, empty_cache, late openings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_allocator import Allocator, drive

from gpuledger.analyze.posting.replay import NEVER, AllocatorSettings, replay
from gpuledger.model.journal.journal import Action


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9), before=st.integers(0, 150), after=st.integers(1, 300))
def test_every_live_block_has_its_true_size(seed: int, before: int, after: int) -> None:
    allocator = Allocator()
    drive(allocator, seed, before)
    opening = allocator.opening() if before else None
    allocator.events.clear()
    drive(allocator, seed + 1, after)
    allocator.malloc(1)
    action, address, size = (np.array(column, dtype=np.int64) for column in zip(*allocator.events, strict=True))
    lives = replay(action.astype(np.int8), address, size, np.zeros_like(size), opening, AllocatorSettings())
    assert lives.unmatched_events == 0
    alive = lives.free_requested_index == NEVER
    found = {
        a: (n, q)
        for a, n, q in zip(
            lives.address[alive].tolist(),
            lives.allocated_bytes[alive].tolist(),
            lives.requested_bytes[alive].tolist(),
            strict=True,
        )
    }
    assert found == {b.address: (b.size, b.requested) for b in allocator.blocks if b.state == 1}
    waiting = (lives.free_requested_index != NEVER) & (lives.free_index == NEVER)
    assert sorted(lives.address[waiting].tolist()) == sorted(b.address for b in allocator.blocks if b.state == 2)
    held = lives.segment_bytes[lives.segment_free_index == NEVER].sum()
    assert held == sum(b.size for b in allocator.blocks)


def test_an_event_that_does_not_fit_is_counted_not_hidden() -> None:
    action = np.array([Action.ALLOC, Action.FREE_COMPLETED], dtype=np.int8)
    lives = replay(action, np.array([64, 128]), np.array([10, 10]), np.zeros(2, np.int64), None, AllocatorSettings())
    assert lives.unmatched_events == 2


@pytest.mark.parametrize(
    ("requested", "divisions", "rounded"),
    [
        (1, 0, 512),
        (513, 0, 1024),
        (1200 << 10, 4, 1280 << 10),
        (1 << 20, 4, 1 << 20),
        (1025 << 10, 4, 1280 << 10),
        (122_088, 8, 122_880),
    ],
)
def test_rounding_with_power_of_two_divisions(requested: int, divisions: int, rounded: int) -> None:
    table = tuple((1 << number, divisions) for number in range(20, 30)) if divisions else ()
    assert AllocatorSettings(power2_divisions=table).round_up(requested) == rounded
