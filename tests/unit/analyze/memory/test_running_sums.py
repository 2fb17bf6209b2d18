"""Running sums over a device's events, and what is read of a rank once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import make_run

from gpuledger.analyze.memory.lifetimes import allocated_curve, read_lives, running_sum
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.model.run import read_run

FAR = 1 << 40
"""So far away that no lookup table reaches from 0 to it."""

INTERVALS = st.lists(st.tuples(st.integers(1, 1 << 30), st.integers(-1, 40), st.integers(0, 40) | st.none()))


@given(INTERVALS, st.booleans())
def test_a_running_sum_is_the_sum_of_the_intervals_that_hold_each_index(
    intervals: list[tuple[int, int, int | None]], is_far: bool
) -> None:
    rows = [(size, start, NEVER if length is None else start + length) for size, start, length in intervals]
    if is_far:
        rows.append((7, FAR, NEVER))
    sizes, start, end = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    curve = running_sum(sizes, start, end)
    edges = {int(mark) for mark in (*start, *end) if mark != NEVER}
    assert curve.index.tolist() == sorted(edges)
    held = [sum(size for size, first, last in rows if first <= index < last) for index in sorted(edges)]
    assert curve.bytes.tolist() == held


def test_blocks_and_their_curve_are_made_once_until_columns_are_forgotten(tmp_path: Path) -> None:
    rank = read_run(make_run(tmp_path / "run.ledger", blocks=50, modules=5)).rank()
    first = read_lives(rank, 0)
    assert read_lives(rank, 0) is first
    assert allocated_curve(first) is allocated_curve(read_lives(rank, 0))
    rank.forget_columns()
    again = read_lives(rank, 0)
    assert again is not first
    assert np.array_equal(again.alloc_index, first.alloc_index)


def test_devices_are_kept_apart(tmp_path: Path) -> None:
    rank = read_run(make_run(tmp_path / "run.ledger", blocks=50, modules=5)).rank()
    assert read_lives(rank, 0).allocated_bytes.size == 50
    with pytest.raises(ValueError, match="zero-size array"):
        read_lives(rank, 1).allocated_bytes.max()
