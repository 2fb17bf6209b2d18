"""Entries of a file become rows of the tables that a recording has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.entries import MAX_NAMED, Entries, LoggedEntry, UnreadParts
from gpuledger.model.accounts import CATEGORIES

numbers = st.integers(0, 1 << 31)
entries = st.builds(
    LoggedEntry,
    name=st.text("ab", max_size=2),
    requested_bytes=numbers,
    allocated_bytes=st.none(),
    category=st.sampled_from(CATEGORIES),
    module=st.sampled_from(["", "a", "a.b"]),
    device_idx=st.integers(-1, 3),
    step=st.integers(0, 9),
    alloc_index=st.none() | st.integers(-1, 99),
    time_ns=st.none() | numbers,
    stack_id=st.integers(-1, 9),
)


@given(st.lists(entries, max_size=6), st.data())
def test_a_block_has_what_its_entry_says_and_null_for_what_it_does_not(
    given: list[LoggedEntry], data: st.DataObject
) -> None:
    kept = Entries(0)
    for row, entry in enumerate(given):
        assert kept.add(entry) == row
    freed = {row: index for row in range(len(given)) if (index := data.draw(st.none() | numbers)) is not None}
    for row, index in freed.items():
        kept.free(row, index)
    tables = kept.tables()
    names = dict(zip(*tables["names"].to_pydict().values(), strict=True))
    for row, (entry, block) in enumerate(zip(given, tables["blocks"].to_pylist(), strict=True)):
        assert block["requested_bytes"] == block["allocated_bytes"] == entry.requested_bytes
        assert (block["category"], block["device_idx"], block["step"]) == (entry.category, entry.device_idx, entry.step)
        assert block["alloc_index"] == (row if entry.alloc_index is None else entry.alloc_index)
        assert block["free_requested_index"] == block["free_index"] == freed.get(row)
        assert block["alloc_ns"] == entry.time_ns
        assert block["stack_id"] == (None if entry.stack_id < 0 else entry.stack_id)
        assert names.get(block["name_id"], "") == entry.name
    live = [entry for row, entry in enumerate(given) if row not in freed]
    assert kept.bytes_by_device() == {
        device: sum(entry.requested_bytes for entry in live if entry.device_idx == device)
        for device in {entry.device_idx for entry in given}
    }


def test_sizes_that_cannot_be_are_refused() -> None:
    kept = Entries(0)
    for requested, allocated in ((-1, None), (2, 1), (1 << 45, None)):
        with pytest.raises(ValueError, match="impossible sizes"):
            kept.add(LoggedEntry("x", requested, allocated))
    assert (kept.count, kept.total_bytes) == (0, 0)


@pytest.mark.parametrize("more", [0, 3])
def test_the_first_parts_that_cannot_be_read_are_named_and_the_others_counted(more: int) -> None:
    unread = UnreadParts()
    assert not unread
    for number in range(MAX_NAMED + more):
        unread.add(str(number))
    assert unread
    assert unread.texts() == (*map(str, range(MAX_NAMED)), *(["and 3 more"] if more else []))
