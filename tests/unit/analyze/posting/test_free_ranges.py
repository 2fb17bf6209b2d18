"""Free ranges of segments, beside a set of the bytes that are free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuledger.analyze.posting.replay import FreeRanges

SEGMENTS = {1: 8, 9: 5, 14: 6, 30: 4}
"""Start and length; the first three lie one behind the other."""
STEPS = st.tuples(
    st.sampled_from(["add", "take", "cut"]), st.sampled_from(sorted(SEGMENTS)), st.integers(0, 7), st.integers(1, 8)
)


def ranges_of(free: set[int], starts: set[int]) -> dict[int, int]:
    """Return start and length of each range of free bytes; none goes on into the next segment."""
    found: dict[int, int] = {}
    begin = -1
    for byte in sorted(free):
        if byte - 1 not in free or byte in starts:
            begin = byte
        found[begin] = byte + 1 - begin
    return found


@given(steps=st.lists(STEPS, max_size=25), mapped=st.booleans())
def test_ranges_are_the_longest_of_what_is_free(steps: list[tuple[str, int, int, int]], mapped: bool) -> None:
    """Pieces of an expandable segment, which are mapped, are one range where they meet; other segments are not."""
    starts = set() if mapped else set(SEGMENTS)
    ranges, free = FreeRanges(segment_starts=starts), set[int]()
    for start, length in SEGMENTS.items():
        ranges.add(start, length)
        free |= set(range(start, start + length))
    for step, segment, offset, length in steps:
        address = segment + offset
        span = set(range(address, min(address + length, segment + SEGMENTS[segment])))
        if step == "take":
            taken = ranges_of(free, starts).get(address)
            assert ranges.take(address) == taken
            free -= set(range(address, address + (taken or 0)))
        elif step == "add" and span and not span & free:
            ranges.add(address, len(span))
            free |= span
        elif step == "cut" and span:
            ranges.cut(address, len(span))
            free -= span if span <= free else set()
        assert ranges.size_at == ranges_of(free, starts)
        assert ranges.start_by_end == {start + length: start for start, length in ranges.size_at.items()}
