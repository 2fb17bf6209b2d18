"""The t-interval against values of tables, and against a case that was computed by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.analyze.compare.welch import Interval, difference, t_quantile


@pytest.mark.parametrize(
    ("share", "freedom", "value"),
    [
        (0.975, 1, 12.706205),
        (0.975, 2, 4.302653),
        (0.975, 4, 2.776445),
        (0.975, 10, 2.228139),
        (0.95, 120, 1.657651),
        (0.9995, 2, 31.599055),
        (0.995, 30, 2.749996),
        (0.975, 1e7, 1.959964),
    ],
)
def test_the_quantiles_are_those_of_tables(share: float, freedom: float, value: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(value, abs=2e-6)


def test_equal_variances_and_sizes_are_students_interval() -> None:
    found = difference([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], 0.95)
    half = 2.776445 * math.sqrt(1 / 3 + 1 / 3)
    assert (found.delta, found.low, found.high) == pytest.approx((3.0, 3 - half, 3 + half), rel=1e-6)
    assert found.is_significant


def test_with_one_group_that_does_not_vary_the_other_decides() -> None:
    found = difference([5.0, 5.0, 5.0], [5.0, 6.0, 7.0], 0.95)
    half = 4.302653 * math.sqrt(1 / 3)
    assert (found.low, found.high) == pytest.approx((1 - half, 1 + half), rel=1e-6)
    assert not found.is_significant


def test_values_that_do_not_vary_differ_exactly() -> None:
    assert difference([3.0, 3.0], [3.0, 3.0], 0.95) == Interval(0.0, 0.0, 0.0)
    assert difference([3.0, 3.0], [4.0, 4.0], 0.95).is_significant


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=6), st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=6))
def test_turned_around_it_is_the_negative_and_contains_its_middle(before: list[float], after: list[float]) -> None:
    there, back = difference(before, after, 0.9), difference(after, before, 0.9)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low), rel=1e-6, abs=1e-6)
    assert there.low <= there.delta <= there.high
    wider = there.at_least(1e9)
    assert (wider.low, wider.high) == (min(there.low, there.delta - 1e9), max(there.high, there.delta + 1e9))
