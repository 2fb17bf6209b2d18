"""What blocks say: intervals that hold the truth, outliers that are counted, drift that is seen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ops.database.statistics import drifted_sections, find_drift, is_enough, mean_within_3_sigma, summarize

positive = st.floats(1e-3, 1e9, allow_nan=False)
blocks = st.lists(positive, min_size=1, max_size=40)


@given(blocks)
def test_the_median_lies_in_its_interval_and_the_interval_in_the_blocks(values: list[float]) -> None:
    spread = summarize(values)
    assert min(values) <= spread.low <= spread.median <= spread.high <= max(values)
    assert spread.count == len(values)
    assert spread.median == pytest.approx(float(np.median(values)))


@given(blocks, st.floats(0.1, 100))
def test_another_unit_changes_only_the_unit(values: list[float], factor: float) -> None:
    one, other = summarize(values), summarize([value * factor for value in values])
    assert other.median == pytest.approx(one.median * factor)
    assert other.low == pytest.approx(one.low * factor)
    assert other.high == pytest.approx(one.high * factor)


@given(blocks)
def test_the_order_of_blocks_says_nothing_of_their_median_and_outliers(values: list[float]) -> None:
    one, other = summarize(values), summarize(values[::-1])
    assert (one.median, one.outliers) == (other.median, other.outliers)


def test_an_interval_holds_the_true_median_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    held = sum(
        spread.low <= 100 <= spread.high
        for spread in (summarize((100 + random.standard_normal(30)).tolist()) for _ in range(300))
    )
    assert 0.88 <= held / 300 <= 0.99


def test_more_blocks_make_the_interval_narrower() -> None:
    random = np.random.default_rng(3)
    few, many = (
        np.median([summarize((1 + 0.1 * random.standard_normal(n)).tolist()).half_width_frac for _ in range(40)])
        for n in (10, 160)
    )
    assert many < few / 2.5


def test_an_outlier_is_counted_and_moves_the_median_less_than_the_old_mean() -> None:
    values = [10.0, 10.1, 9.9, 10.05, 9.95, 10.0, 10.02, 9.98, 10.0, 40.0]
    spread = summarize(values)
    assert spread.outliers == 1
    assert spread.median == pytest.approx(10.0, abs=0.03)
    assert spread.mean_3_sigma == pytest.approx(13.0, abs=0.01)  # one in ten is within three sigma of its own making


def test_the_old_mean_leaves_out_what_is_far_out() -> None:
    values = np.array([10.0] * 30 + [1000.0])
    assert mean_within_3_sigma(values) == 10.0


def test_no_blocks_have_no_median() -> None:
    with pytest.raises(ValueError, match="no measurements"):
        summarize([])


def test_blocks_are_enough_when_they_agree_or_there_are_many() -> None:
    assert not is_enough([1.0] * 9, 0.01, least=10, most=200)
    assert is_enough([1.0] * 10, 0.01, least=10, most=200)
    noisy = [1.0, 2.0] * 10
    assert not is_enough(noisy, 0.01, least=10, most=200)
    assert is_enough(noisy, 0.01, least=10, most=20)
    assert not is_enough([5.0], 0.5, least=1, most=20)  # one block knows nothing of its spread


def test_drift_is_that_of_neighbours_and_from_first_to_last() -> None:
    drift = find_drift([100.0, 101.0, 105.0, 103.0])
    assert drift.readings == 4
    assert drift.worst_frac == pytest.approx(105 / 101 - 1)
    assert drift.total_frac == pytest.approx(0.03)
    assert drifted_sections([(100.0, 1.0), (101.0, 1.0), (105.0, 1.0), (103.0, 1.0)]) == (1,)
    assert drifted_sections([(101.0, 2.5), (105.0, 2.5)]) == ()  # their intervals meet
    assert drifted_sections([(100.0, 0.0)]) == ()
    assert find_drift([]).worst_frac == 0.0
