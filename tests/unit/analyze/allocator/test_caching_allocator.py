"""Which cached blocks a request may take, what is split, and what is released if the GPU is full: as in PyTorch."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.analyze.allocator.memory import CardMemory, unheard
from gpuledger.analyze.allocator.pools import AllocatorLimits
from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.model.journal.journal import Action

MIB = 1 << 20
SPLIT_LIMIT = AllocatorSettings(max_split_bytes=64 * MIB)


def with_cached(
    *sizes_mib: int, kept_mib: int = 0, capacity_mib: int | None = None, settings: AllocatorSettings = SPLIT_LIMIT
) -> CachingAllocator:
    """Return an allocator with cached segments of these sizes and one that is in use."""
    limits = AllocatorLimits(capacity_bytes=None if capacity_mib is None else capacity_mib * MIB)
    allocator = CachingAllocator(settings, limits)
    if kept_mib:
        allocator.malloc(kept_mib * MIB)
    for address in [allocator.malloc(size * MIB) for size in sizes_mib]:
        allocator.free(address)
    return allocator


def reserved_mib(allocator: CachingAllocator) -> float:
    return allocator.counters.reserved_bytes / MIB


@pytest.mark.parametrize(
    ("requested_bytes", "segment_bytes"),
    [
        (1, 2 * MIB),
        (1 * MIB, 2 * MIB),
        (1 * MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ],
)
def test_a_segment_has_the_size_of_its_class(requested_bytes: int, segment_bytes: int) -> None:
    allocator = CachingAllocator()
    allocator.malloc(requested_bytes)
    assert allocator.counters.reserved_bytes == segment_bytes


def test_a_request_and_its_free_take_few_calls_of_functions() -> None:
    """An estimate replays a program's requests for each GPU of the catalogue, so this is much of its time."""
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(10 * MIB))
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        address = allocator.malloc(4 * MIB)
        allocator.free(address)
    finally:
        sys.setprofile(None)
    assert len(calls) <= 20, calls


def test_segments_follow_one_another_at_whole_large_pages() -> None:
    memory = CardMemory(AllocatorLimits(), unheard, None)
    first = memory.place(1)
    found = [memory.place(size) - first for size in (2 * MIB, 2 * MIB + 1, 5 * MIB, 1)]
    assert found == [size * MIB for size in (2, 4, 8, 14)]
    assert all(isinstance(place, int) for place in found)


@pytest.mark.parametrize(
    ("cached_mib", "requested_mib", "taken"),
    [
        (62, 40, True),
        (64, 40, False),  # a small request takes no block that is too large to be split
        (82, 64, True),  # a large request takes one whose rest is below 20 MiB
        (84, 64, False),
        (84, 65, True),
    ],
)
def test_max_split_size_limits_which_blocks_a_request_takes(cached_mib: int, requested_mib: int, taken: bool) -> None:
    allocator = with_cached(cached_mib)
    allocator.malloc(requested_mib * MIB)
    assert reserved_mib(allocator) == cached_mib + (0 if taken else requested_mib)


@pytest.mark.parametrize(("cached_mib", "requested_mib", "split"), [(62, 50, True), (82, 64, False)])
def test_a_request_of_max_split_size_takes_a_whole_block(cached_mib: int, requested_mib: int, split: bool) -> None:
    """The next request fits into what a split leaves."""
    allocator = with_cached(cached_mib)
    allocator.malloc(requested_mib * MIB)
    allocator.malloc(11 * MIB)
    assert reserved_mib(allocator) == cached_mib + (0 if split else 12)
    assert SPLIT_LIMIT.splits(requested_mib * MIB, 12 * MIB) is split


@pytest.mark.parametrize(
    ("rounded_bytes", "rest_bytes", "split"),
    [
        (512, 512, True),
        (512, 511, False),
        (1 * MIB, 512, True),
        (2 * MIB, 1 * MIB, False),
        (2 * MIB, 1 * MIB + 512, True),
    ],
)
def test_a_rest_is_split_off_if_the_pool_can_use_it(rounded_bytes: int, rest_bytes: int, split: bool) -> None:
    assert AllocatorSettings().splits(rounded_bytes, rest_bytes) is split
    assert AllocatorSettings(expandable=True).splits(rounded_bytes, rest_bytes) is (rest_bytes >= 512)


def test_one_segment_that_is_large_enough_is_released_first() -> None:
    allocator = with_cached(64, 160, kept_mib=76, capacity_mib=300)
    allocator.malloc(130 * MIB)
    assert reserved_mib(allocator) == 76 + 64 + 130
    assert allocator.counters.retries == 0


def test_segments_are_released_from_the_largest_until_they_are_enough() -> None:
    allocator = with_cached(64, 64, 96, kept_mib=76, capacity_mib=300)
    allocator.malloc(160 * MIB)
    assert reserved_mib(allocator) == 76 + 64 + 160
    assert allocator.counters.retries == 0


def test_segments_below_max_split_size_are_released_with_the_whole_cache_only() -> None:
    allocator = with_cached(62, 96, kept_mib=142, capacity_mib=300)
    allocator.malloc(140 * MIB)
    assert reserved_mib(allocator) == 142 + 140
    assert allocator.counters.retries == 1
    kept = with_cached(62, 70, 70, kept_mib=98, capacity_mib=300)
    kept.malloc(136 * MIB)
    assert reserved_mib(kept) == 98 + 62 + 136
    assert kept.counters.retries == 0


def test_without_max_split_size_the_whole_cache_is_released() -> None:
    allocator = with_cached(64, 160, kept_mib=76, capacity_mib=300, settings=AllocatorSettings())
    allocator.malloc(170 * MIB)
    assert reserved_mib(allocator) == 76 + 170
    assert allocator.counters.retries == 1


@pytest.mark.parametrize(("stream", "waits"), [(0, False), (7, True)])
def test_the_free_of_a_block_that_another_stream_used_waits_for_the_next_request(stream: int, waits: bool) -> None:
    events: list[Action] = []
    allocator = CachingAllocator(listen=lambda action, *_: events.append(action))
    address = allocator.malloc(30 * MIB)
    allocator.record_stream(address, stream)
    allocator.record_stream(address + 512, 7)  # no block begins there
    events.clear()
    allocator.free(address)
    assert events == [Action.FREE_REQUESTED] + [Action.FREE_COMPLETED] * (not waits)
    assert allocator.malloc(30 * MIB) == address
    assert events == [Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.ALLOC]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 30 * MIB)), max_size=30))
def test_counters_are_the_sums_of_what_is_in_use_and_peaks_their_largest(steps: list[tuple[int, int]]) -> None:
    """Each step frees the block of its number, or requests one where there is none."""
    allocator = CachingAllocator()
    counters, in_use, requests, largest = allocator.counters, dict[int, tuple[int, int]](), 0, 0
    assert not any(vars(counters).values())
    for number, requested_bytes in steps:
        if number in in_use:
            allocator.free(in_use.pop(number)[0])
        else:
            in_use[number] = allocator.malloc(requested_bytes), requested_bytes
            requests += 1
        largest = max(largest, sum(block.size for block in allocator.live.values()))
        assert set(allocator.live) == {address for address, _ in in_use.values()}
        assert counters.requested_bytes == sum(requested for _, requested in in_use.values())
        assert counters.allocated_bytes == sum(block.size for block in allocator.live.values())
        assert (counters.alloc_count, counters.free_count) == (requests, requests - len(in_use))
        assert counters.active_bytes == counters.allocated_bytes  # no other stream uses a block
        assert counters.peak_allocated_bytes == largest
        assert counters.peak_reserved_bytes == counters.reserved_bytes  # nothing is released while there is room


@pytest.mark.parametrize("freed_mib", [45, 55])
def test_what_lies_beside_the_pages_that_are_unmapped_stays_free(freed_mib: int) -> None:
    """Pages have 20 MiB: of 25 to 70 MiB one is unmapped and 15 and 10 stay, of 25 to 80 MiB two and 15."""
    allocator = CachingAllocator(AllocatorSettings(expandable=True))
    start, freed, _ = (allocator.malloc(size * MIB) for size in (25, freed_mib, 20))
    whole_mib = reserved_mib(allocator)
    allocator.free(freed)
    allocator.empty_cache()
    left_mib = reserved_mib(allocator)
    assert whole_mib - left_mib == (20 if freed_mib == 45 else 40)
    assert allocator.malloc(15 * MIB) == freed == start + 25 * MIB
    if freed_mib == 45:
        assert allocator.malloc(10 * MIB) == start + 60 * MIB
    assert reserved_mib(allocator) == left_mib
    assert (allocator.malloc(20 * MIB), reserved_mib(allocator)) == (start + 40 * MIB, left_mib + 20)


def test_what_stays_beside_unmapped_pages_is_joined_with_its_neighbour_when_that_is_freed() -> None:
    """25, 45 and 20 MiB in 5 pages of 20: of the 45 one page is unmapped, and 15 stay before it and 10 after it."""
    allocator = CachingAllocator(AllocatorSettings(expandable=True))
    first, middle, last = (allocator.malloc(size * MIB) for size in (25, 45, 20))
    allocator.free(middle)
    allocator.empty_cache()
    assert reserved_mib(allocator) == 80
    allocator.free(first)
    allocator.free(last)
    assert [allocator.malloc(40 * MIB) - first for _ in range(2)] == [0, 60 * MIB]
    assert reserved_mib(allocator) == 80


@pytest.mark.parametrize(("threshold", "kept_mib"), [(0.15, 62 + 64), (0.1, 0)])
def test_garbage_is_collected_from_the_oldest_until_the_threshold_is_met(threshold: float, kept_mib: int) -> None:
    """Of three cached segments the oldest goes first. The other two, of one age, go if more has to."""
    limits = AllocatorLimits(capacity_bytes=1000 * MIB, fraction=1.0, garbage_collection_threshold=threshold)
    allocator = CachingAllocator(AllocatorSettings(), limits)
    oldest, middle, newest = (allocator.malloc(size * MIB) for size in (60, 62, 64))
    allocator.free(oldest)
    allocator.free(newest)
    allocator.free(allocator.malloc(64 * MIB))
    allocator.free(middle)
    allocator.malloc(100 * MIB)
    assert reserved_mib(allocator) == kept_mib + 100
