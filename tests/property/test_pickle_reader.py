"""The safe reader against the real unpickler, on plain values of any shape."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import dumped, event, some_frames

from gpuledger.errors import InputError
from gpuledger.formats.snapshot import pickle_reader
from gpuledger.formats.snapshot.pickle_reader import Memo, items_of, read_pickle
from gpuledger.formats.snapshot.pickle_records import RecordRange

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 100), 1 << 100) | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 300), inner, max_size=5)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=20,
)


def opened(value: Any, memo: Memo) -> Any:
    """Return a value with every run made into dictionaries."""
    if isinstance(value, list):
        return [opened(item, memo) for item in items_of(value, memo)]
    if isinstance(value, tuple):
        return tuple(opened(item, memo) for item in value)
    if isinstance(value, dict):
        return {key: opened(item, memo) for key, item in value.items()}
    return value


def read(data: bytes) -> Any:
    return opened(*read_pickle(data, "file"))


@settings(max_examples=100)
@given(value=plain, protocol=st.integers(2, 5))
def test_plain_values_are_read_as_the_unpickler_reads_them(value: Any, protocol: int) -> None:
    assert read(pickle.dumps(value, protocol=protocol)) == value


numbers = st.integers(0, 255) | st.integers(0, 65535) | st.integers(-(1 << 31), (1 << 63) - 1) | st.integers(0, 1 << 64)


@settings(max_examples=25)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from(("alloc", "free_requested", "oom")), numbers, numbers, st.text(max_size=3)),
        min_size=100,
        max_size=1_200,
    ),
    stacks=st.booleans(),
    pool=st.booleans(),
    protocol=st.integers(2, 5),
)
def test_runs_of_events_hold_what_the_unpickler_makes(
    rows: list[tuple[str, int, int, str]], stacks: bool, pool: bool, protocol: int
) -> None:
    frames = some_frames(7, 5)
    trace = [
        event(
            number,
            action,
            address,
            size,
            user_metadata=metadata,
            **({"pool_id": (0, number % 300)} if pool else {}),
            **({"frames": frames[number % 7] if number % 2 else list(frames[number % 7])} if stacks else {}),
        )
        for number, (action, address, size, metadata) in enumerate(rows)
    ]
    data = dumped({"device_traces": [trace, [], trace[:3]], "again": [trace[-1].get("frames"), trace[5]]}, protocol)
    assert read(data) == pickle.loads(data)


@pytest.mark.parametrize("count", [999, 1000, 1001, 5_000])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_long_traces_are_read_as_runs(count: int, depth: int) -> None:
    frames = some_frames(50, depth) if depth else [[]]
    trace = [event(n, "alloc", (1 << 40) + n, n, frames=list(frames[n % len(frames)])) for n in range(count)]
    value, memo = read_pickle(dumped([trace]), "file")
    in_runs = sum(item.count for item in value[0] if isinstance(item, RecordRange))
    assert in_runs > 0.9 * count
    assert opened(value, memo) == [trace]
    assert opened(value, memo) == [trace]


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_bytes_are_read(protocol: int) -> None:
    assert read(pickle.dumps([b"", b"abc"], protocol=protocol)) == [b"", b"abc"]


def test_a_text_that_looks_like_records_is_a_text() -> None:
    trace = [event(n, "alloc", n, n) for n in range(200)]
    likeness = dumped([trace])
    for place in range(0, 300, 13):
        value = [trace[:40], likeness[place : place + 5_000].decode("latin-1"), trace[40:]]
        assert read(dumped(value)) == value


@pytest.mark.parametrize(("characters", "refused"), [(5, True), (60, False)])
def test_many_short_texts_need_more_memory_than_a_file_may(
    characters: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text takes memory beside its characters, so a file of short ones grows most when it is read."""
    monkeypatch.setattr(pickle_reader, "COST_FLOOR_BYTES", 5_000)
    data = pickle.dumps([f"{number:0{characters}}" for number in range(1_000)])
    if refused:
        with pytest.raises(InputError, match="times its size in memory"):
            read(data)
    else:
        assert read(data)[-1] == f"{999:0{characters}}"
