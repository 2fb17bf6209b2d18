"""The simulated allocator against recordings of a GPU, and against what must hold for any program."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from pathlib import Path

import pytest
from card_recordings import RECORDED, post_recording
from folders import DATA, RECORDINGS
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.analyze.allocator.pools import AllocatorLimits, OutOfMemoryError
from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.model.journal.journal import Action
from gpuledger.model.journal.reading import Journal, read_journal
from gpuledger.simulate.estimate.what_if import rank_settings

MIB = 1 << 20
CAPACITY_BYTES = 256 * MIB


def journal_of(name: str, directory: Path) -> Journal:
    (directory / "00000.npz").write_bytes((RECORDINGS / f"{name}.npz").read_bytes())
    return read_journal(directory)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_stream_gives_the_recorded_events(name: str, tmp_path: Path) -> None:
    """Requests and frees in, the GPU's own blocks and segments out: each event, its address and its bytes."""
    journal = journal_of(name, tmp_path)
    events = journal.tables["events"]
    recorded = [
        (int(action), int(address), int(size))
        for action, address, size in zip(events["action"], events["address"], events["bytes"], strict=True)
        if action not in (Action.SNAPSHOT, Action.OTHER)
    ]
    places = deque(address for action, address, _ in recorded if action == Action.SEGMENT_ALLOC)
    found: list[tuple[int, int, int]] = []
    allocator = CachingAllocator(
        AllocatorSettings.from_snapshot(journal.facts["allocator_settings"]),
        listen=lambda action, address, size, _stream: found.append((int(action), address, size)),
        place=lambda _size: places.popleft(),
    )
    for action, address, size in recorded:
        if action == Action.ALLOC:
            allocator.malloc(size)
        elif action == Action.FREE_REQUESTED:
            allocator.free(address)
    assert found == recorded
    assert not places
    counters = journal.tables["counters"]
    assert allocator.counters.peak_reserved_bytes == counters["peak_reserved_bytes"].max()
    assert allocator.counters.peak_allocated_bytes == counters["peak_allocated_bytes"].max()


TRUTH = DATA / "h200" / "estimate_truth"
"""Journals of the grid of trainings; other allocator settings were recorded for four of them."""
MOST_EVENTS = 4000


@pytest.mark.parametrize(
    "name",
    [
        "gan-fp32-adam-256",
        "gpt2-bf16-adamw-8-expandablesegments",
        "resnet50-fp32-momentum-32-expandablesegments",
        "bert-fp32-adam-16-rounduppower2divisions",
        "llama-pure-bf16-adamw-4-maxsplitsizemb",
    ],
)
def test_other_settings_give_the_recorded_segments(name: str, tmp_path: Path) -> None:
    """The same blocks and the same reserved bytes at every event, under each setting that was recorded.

    Where segments can grow their addresses are the driver's, so events are compared without them.
    """
    (tmp_path / "00000.npz").write_bytes((TRUTH / f"{name}.npz").read_bytes())
    journal = read_journal(tmp_path)
    events = journal.tables["events"]
    columns = (events[column].tolist() for column in ("action", "address", "bytes", "stream"))
    skipped = (Action.SNAPSHOT, Action.OTHER)
    recorded = [row for row in zip(*columns, strict=True) if row[0] not in skipped][:MOST_EVENTS]
    settings_ = AllocatorSettings.from_snapshot(journal.facts["allocator_settings"])
    places = deque(address for action, address, _, _ in recorded if action == Action.SEGMENT_ALLOC)
    found: list[tuple[int, int, int, int]] = []
    allocator = CachingAllocator(
        settings_,
        listen=lambda action, address, size, stream: found.append((int(action), address, size, stream)),
        place=None if settings_.expandable else lambda _size: places.popleft(),
    )
    at: dict[int, int] = {}
    for action, address, size, stream in recorded:
        if action == Action.ALLOC:
            at[address] = allocator.malloc(size, stream)
        elif action == Action.FREE_REQUESTED:
            allocator.free(at.pop(address))
    first = 2 if settings_.expandable else 1
    assert [(row[0], *row[first:]) for row in found[: len(recorded)]] == [(row[0], *row[first:]) for row in recorded]


def test_other_settings_are_ranked_from_a_recorded_run(tmp_path: Path) -> None:
    """The default's figure is what the GPU reserved; the others are those of a replay, the least first."""
    rank = post_recording("gpt2", tmp_path)
    outcomes = rank_settings(rank, 0)
    sizes = [outcome.peak_reserved_bytes for outcome in outcomes]
    assert sizes == sorted(sizes)
    default = next(outcome for outcome in outcomes if not outcome.alloc_conf)
    counters = rank.table("counters").to_pydict()
    assert default.peak_reserved_bytes == max(counters["peak_reserved_bytes"])
    # which of two equal free blocks is taken goes by the driver's addresses, and with it a block's unsplit rest
    assert default.peak_allocated_bytes == pytest.approx(max(counters["peak_allocated_bytes"]), rel=0.002)
    expandable = next(outcome for outcome in outcomes if outcome.alloc_conf == "expandable_segments:True")
    assert expandable.peak_allocated_bytes < expandable.peak_reserved_bytes < 1.1 * expandable.peak_allocated_bytes


@pytest.mark.parametrize(
    ("recorded", "wanted", "setting"),
    [
        ("resnet50-fp32-momentum-32", "resnet50-fp32-momentum-32-expandablesegments", "expandable_segments:True"),
        ("resnet50-fp32-momentum-32-expandablesegments", "resnet50-fp32-momentum-32", ""),
        ("bert-fp32-adam-16", "bert-fp32-adam-16-rounduppower2divisions", "roundup_power2_divisions:8"),
        ("llama-pure-bf16-adamw-4-maxsplitsizemb", "llama-pure-bf16-adamw-4", ""),
    ],
)
def test_what_if_gives_what_the_gpu_reserved_with_that_setting(
    recorded: str, wanted: str, setting: str, tmp_path: Path
) -> None:
    """A recording with one setting, replayed with another: the bytes of a second recording, with that other setting."""
    rank = post_recording(recorded, tmp_path, TRUTH)
    (tmp_path / "00000.npz").write_bytes((TRUTH / f"{wanted}.npz").read_bytes())
    reserved_bytes = read_journal(tmp_path).tables["counters"]["peak_reserved_bytes"].max()
    (outcome,) = rank_settings(rank, 0, (setting,))
    assert outcome.peak_reserved_bytes == reserved_bytes


SIZES = st.one_of(st.integers(1, 4096), st.integers(1, 3 * MIB), st.integers(MIB, 60 * MIB))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 1000), st.just(0)),
        st.tuples(st.just("share"), st.integers(0, 1000), st.just(2)),
        st.tuples(st.just("empty"), st.just(0), st.just(0)),
    ),
    max_size=80,
)
SETTINGS = st.sampled_from(
    [
        AllocatorSettings(),
        AllocatorSettings(expandable=True),
        AllocatorSettings(max_split_bytes=20 * MIB),
        AllocatorSettings(power2_divisions=((MIB, 8),)),
    ]
)


@given(STEPS, SETTINGS)
@settings(max_examples=150)
def test_databases_balance_for_any_program(
    steps: list[tuple[str, int, int]], allocator_settings: AllocatorSettings
) -> None:
    """Reserved is what the segments hold, blocks never overlap, and a freed program leaves nothing behind."""
    allocator = CachingAllocator(allocator_settings, AllocatorLimits(capacity_bytes=CAPACITY_BYTES))
    for what, number, stream in steps:
        live = sorted(allocator.live)
        if what == "malloc":
            try:
                allocator.malloc(number, stream)
            except OutOfMemoryError:
                assert allocator.counters.retries
        elif what == "empty":
            allocator.empty_cache()
        elif live:
            address = live[number % len(live)]
            if what == "free":
                allocator.free(address)
            else:
                allocator.record_stream(address, stream)
        assert_databases(allocator)
    for address in sorted(allocator.live):
        allocator.free(address)
    allocator.empty_cache()
    assert allocator.counters.reserved_bytes == 0
    assert allocator.counters.allocated_bytes == allocator.counters.requested_bytes == 0


def assert_databases(allocator: CachingAllocator) -> None:
    counters = allocator.counters
    assert counters.reserved_bytes <= CAPACITY_BYTES
    free = [block for pool in allocator.pools.values() for block in pool.free.values()]
    free_bytes = sum(block.size for block in free)
    assert counters.reserved_bytes == counters.active_bytes + free_bytes
    held = sorted((b.address, b.size) for b in (*allocator.live.values(), *free))
    assert all(address + size <= later for (address, size), (later, _) in pairwise(held))
    for block in allocator.live.values():
        assert block.size >= block.requested_bytes


def test_garbage_collection_gives_old_segments_back() -> None:
    """At 72 of 100 MiB with a threshold of a half, the two oldest segments go before a fourth one is taken."""
    kept = {}
    for fraction in (1.0, None):
        limits = AllocatorLimits(capacity_bytes=110 * MIB, fraction=fraction, garbage_collection_threshold=0.5)
        allocator = CachingAllocator(limits=limits)
        for size in (20, 24, 28, 32):
            allocator.free(allocator.malloc(size * MIB))
        kept[fraction] = allocator.counters.reserved_bytes
    assert kept == {1.0: 60 * MIB, None: 104 * MIB}
