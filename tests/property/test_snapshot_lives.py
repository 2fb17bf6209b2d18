"""Lives found from a snapshot against an allocator that knows them, also where the trace begins in the middle."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_allocator import Allocator, drive
from snapshots import dumped, snapshot_of, some_frames

from gpuledger.analyze.posting.replay import NEVER
from gpuledger.formats.torch_snapshot import Snapshot, read_snapshot
from gpuledger.model.journal.journal import Action

ALL = 10**9


def truth(allocator: Allocator) -> dict[int, tuple[int, int]]:
    return {block.address: (block.size, block.requested) for block in allocator.blocks if block.state == 1}


def read(allocator: Allocator, last_events: int = ALL, frames: bool = False) -> Snapshot:
    shown = snapshot_of(allocator, some_frames(5, 3) if frames else None)
    shown["device_traces"][0] = shown["device_traces"][0][-last_events:]
    return read_snapshot(dumped(shown), "file")


@settings(max_examples=40)
@given(seed=st.integers(0, 10**9), count=st.integers(1, 400), last=st.integers(1, 300), frames=st.booleans())
@example(seed=386, count=344, last=20, frames=False)  # a block's uncut rest ends where a later allocation begins
@example(seed=612617624, count=197, last=105, frames=False)
def test_lives_are_those_of_the_allocator(seed: int, count: int, last: int, frames: bool) -> None:
    allocator = Allocator()
    drive(allocator, seed, count)
    whole, cut = read(allocator, frames=frames).devices[0], read(allocator, last, frames=frames).devices[0]
    for device in (whole, cut):
        lives = device.lives
        assert lives.unmatched_events == 0
        assert device.bytes_differ == 0
        alive = lives.free_requested_index == NEVER
        rows = zip(*(values[alive].tolist() for values in (lives.address, lives.allocated_bytes)), strict=True)
        assert dict(rows) == {address: size for address, (size, _) in truth(allocator).items()}
        held = lives.segment_bytes[lives.segment_free_index == NEVER]
        assert held.sum() == sum(block.size for block in allocator.blocks)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**9), count=st.integers(20, 300), last=st.integers(2, 200))
def test_a_cut_trace_gives_the_end_of_the_same_database(seed: int, count: int, last: int) -> None:
    allocator = Allocator()
    drive(allocator, seed, count)
    whole, cut = read(allocator).devices[0], read(allocator, last).devices[0]
    shift = whole.trace.action.size - cut.trace.action.size
    for index in range(cut.trace.action.size):
        states = []
        for device, at in ((whole, index + shift), (cut, index)):
            lives = device.lives
            live = (lives.alloc_index <= at) & (lives.free_requested_index > at)
            states.append(sorted(zip(lives.address[live].tolist(), lives.allocated_bytes[live].tolist(), strict=True)))
        assert states[0] == states[1]


@pytest.mark.parametrize("skipped", ["free_requested", "free_completed"])
def test_frees_of_which_torch_recorded_one_event_only(skipped: str) -> None:
    allocator = Allocator()
    dice = random.Random(3)
    for _ in range(200):
        block = allocator.malloc(dice.choice((100, 4096, 3 << 20)))
        if dice.random() < 0.8:
            allocator.give_back(block)
            allocator.complete(block)
    shown = snapshot_of(allocator)
    shown["device_traces"][0] = [one for one in shown["device_traces"][0] if one["action"] != skipped]
    device = read_snapshot(dumped(shown), "file").devices[0]
    assert device.lives.unmatched_events == 0
    assert device.bytes_differ == 0
    assert (device.lives.free_index != NEVER).sum() == sum(a == Action.FREE_COMPLETED for a, _, _ in allocator.events)


def test_every_recorded_allocation_has_its_stack() -> None:
    allocator = Allocator()
    drive(allocator, 7, 1_500)
    device = read(allocator, 1_000, frames=True).devices[0]
    assert device.stack_id.size == device.lives.address.size
    assert (device.stack_id[device.lives.alloc_index >= 0] >= 0).all()
    assert np.all(device.lives.allocated_bytes >= device.lives.requested_bytes)
