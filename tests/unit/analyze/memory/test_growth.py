"""The trend of a floor: steady rises until the last step, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.analyze.memory.growth import FEWEST_FAILED_STEPS, _has_more, _steps_until_full
from gpuledger.analyze.memory.trends import FEWEST_STEPS, Trend, rising
from gpuledger.model.flight_facts import CensusFacts, Holder, TensorGroup

STEPS = np.arange(1, 201, dtype=np.float64)
MIB = float(1 << 20)


@given(st.floats(1e3, 1e9), st.integers(0, 2**32 - 1))
def test_a_steady_rise_is_measured(per_step: float, seed: int) -> None:
    noise = np.random.default_rng(seed).uniform(0, 3 * per_step, STEPS.size)
    trend = rising(STEPS, 100 * MIB + per_step * STEPS + noise)
    assert trend is not None
    assert trend.per_step == pytest.approx(per_step, rel=0.1)


@given(st.integers(0, 2**32 - 1))
def test_noise_has_no_trend_in_most_draws_of_its_floor(seed: int) -> None:
    values = 100 * MIB + np.random.default_rng(seed).uniform(0, 50 * MIB, STEPS.size)
    trend = rising(STEPS, values)
    assert trend is None


def test_a_rise_begins_after_the_warm_up() -> None:
    later = rising(STEPS, np.where(STEPS < 30, 100 * MIB, (100 + STEPS - 30) * MIB))
    assert later is not None
    assert later.per_step == pytest.approx(MIB, rel=0.01)
    assert 20 <= later.since_step <= 40


@pytest.mark.parametrize("begin", [60, 90, 130])
def test_a_rise_that_begins_late_is_found(begin: int) -> None:
    noise = np.random.default_rng(begin).uniform(0, 2 * MIB, STEPS.size)
    trend = rising(STEPS, 100 * MIB + np.maximum(STEPS - begin, 0) * MIB + noise)
    assert trend is not None
    assert trend.per_step == pytest.approx(MIB, rel=0.1)
    assert trend.since_step == pytest.approx(begin, abs=12)


@pytest.mark.parametrize(
    "values",
    [
        np.full(STEPS.size, MIB),
        np.minimum(STEPS, 120) * MIB,  # a cache that has reached its bound
        np.log(STEPS) * 100 * MIB,  # one that fills ever slower
        np.where(STEPS > 100, 2 * MIB, MIB),  # one step up
        -STEPS * MIB,
        (STEPS % 25) * MIB,
        (STEPS % 100) * MIB,  # outputs of an epoch
        np.where(STEPS < 150, STEPS, STEPS - 149) * MIB,  # outputs of an epoch that is not over
        np.minimum(np.maximum(STEPS - 100, 0), 80) * MIB,  # a cache that begins late and is full
        np.full(STEPS.size, np.nan),
    ],
)
def test_what_stops_or_repeats_is_no_trend(values: np.ndarray) -> None:
    assert rising(STEPS, values) is None


def test_few_steps_have_no_trend() -> None:
    few = STEPS[: FEWEST_STEPS - 1]
    assert rising(few, few * MIB) is None


@pytest.mark.parametrize(("steps", "healthy"), [(8, 0), (19, 1), (19, 4), (31, 18)])
def test_few_steps_suffice_before_a_failed_request(steps: int, healthy: int) -> None:
    few = STEPS[:steps]
    values = np.maximum(few - healthy, 0) * MIB
    trend = rising(few, values, fewest=FEWEST_FAILED_STEPS)
    assert trend is not None
    assert trend.per_step == pytest.approx(MIB, rel=0.2)
    assert abs(trend.since_step - healthy) <= 2


@pytest.mark.parametrize(
    "values",
    [[5, 0, 0, 0, 0, 0, 0, 0, 0], [0, 3, 0, 3, 0, 3, 0, 3, 0], [0, 1, 1, 1, 1, 1, 1, 1, 1], [0] * 8 + [9]],
    ids=["the optimizer's state", "every second step", "a warm-up", "one jump"],
)
def test_few_steps_without_a_steady_rise_have_no_trend(values: list[int]) -> None:
    sizes = np.cumsum(values) if values[0] else np.array(values)
    assert rising(STEPS[: len(values)], sizes * MIB, fewest=FEWEST_FAILED_STEPS) is None


def census(step: int, length: int) -> CensusFacts:
    holder = Holder(kind="deque", name="last", length=length, more=length - 10, element_bytes=1 << 20)
    return CensusFacts(step=step, took_ns=1, is_complete=True, holder=holder)


@pytest.mark.parametrize(("length", "still_grows"), [(50, False), (150, True)])
def test_a_container_that_is_full_confirms_no_growth(length: int, still_grows: bool) -> None:
    """It has gained enough bytes since the first census, and none since the census before the last."""
    first = CensusFacts(step=10, took_ns=1, is_complete=True)
    censuses = (first, census(100, 50), census(200, length))
    rank: Any = SimpleNamespace(manifest=SimpleNamespace(censuses=censuses))
    trend = Trend(per_step=0.2 * MIB, since_step=10, total=40 * MIB)
    assert _has_more(rank, first, censuses[-1], trend) is still_grows


@pytest.mark.parametrize(
    ("references", "element_tensors", "ends"),
    [(290, 1.0, True), (490, 2.0, True), (490, 1.0, False), (290, 0.0, False), (None, 1.0, False)],
    ids=["all tensors", "two of each element", "twice as many tensors", "no tensors", "not counted"],
)
def test_a_queue_that_has_all_new_tensors_explains_what_the_allocator_adds(
    references: int | None, element_tensors: float, ends: bool
) -> None:
    """Resident memory grows by 2 MiB with each element of 1 MiB: by gaps between them, or by other tensors."""
    queue = Holder(kind="deque", length=200, more=190, content="tensor", bound=500, element_bytes=1 << 20)
    holder = replace(queue, element_tensors=element_tensors)
    first = CensusFacts(step=10, took_ns=1, is_complete=True, tensor_references=100)
    last = CensusFacts(step=200, took_ns=1, is_complete=True, tensor_references=references, holder=holder)
    rank: Any = SimpleNamespace(manifest=SimpleNamespace(censuses=(first, last)))
    assert _steps_until_full(rank, 2 * MIB, 220) == (280 if ends else None)


def counted(step: int, collections: int | None) -> CensusFacts:
    group = TensorGroup(device_idx=-1, kind="leaf", tensors=2 * step, bytes=step << 20)
    return CensusFacts(step=step, took_ns=1, is_complete=True, groups=(group,), collections=collections)


@pytest.mark.parametrize(
    ("collections", "grows"),
    [((5, 5, 5), False), ((5, 5, 6), False), ((5, 7, 8), False), ((5, 5, 7), True), ((None,) * 3, True)],
    ids=["never", "once", "before it grew", "twice", "no collector"],
)
def test_tensors_that_wait_for_the_garbage_collector_confirm_no_growth(
    collections: tuple[int | None, ...], grows: bool
) -> None:
    """Objects that refer to themselves stay until Python collects garbage, which takes hundreds of objects."""
    censuses = tuple(counted(step, number) for step, number in zip((10, 40, 100), collections, strict=True))
    rank: Any = SimpleNamespace(manifest=SimpleNamespace(censuses=censuses))
    trend = Trend(per_step=MIB, since_step=45, total=55 * MIB)
    assert _has_more(rank, censuses[0], censuses[-1], trend) is grows
