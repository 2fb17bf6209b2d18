"""A step's joules on accounts: they sum to the counter's whatever ran, and shares follow time, work and base power."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gpuledger.analyze.operator_work.measured_watts import MeasuredType, WattTable
from gpuledger.analyze.operator_work.work_class import CLASSES, class_of
from gpuledger.analyze.step.energy import (
    ONE_BASE_FRAC,
    StepEnergy,
    Weights,
    _base,
    _known_watts,
    _notes,
    apportion,
    weigh,
)
from gpuledger.model.pass_facts import PassEnergy

MATRIX, MEMORY = (position for position, one in enumerate(CLASSES) if one.name in ("matrix", "memory"))


def a_step(energy_j: float = 100.0, duration_s: float = 0.2, base_w: float | None = 100.0) -> StepEnergy:
    return StepEnergy(0, 10, energy_j, 0.01 * energy_j, duration_s, base_w, 0.0, ())


MEASURED = WattTable(
    "a card",
    "a database",
    (MeasuredType("aten::mm", "float32", 500, 450, 550, 9), MeasuredType("x", "", 20, 10, 80, 3)),
)


def shared(
    durations_s: np.ndarray, busy_s: float, step: StepEnergy, table: WattTable | None = None
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Return joules and plus or minus of each key, and of what is idle."""
    return apportion(durations_s, busy_s, step, weigh(durations_s, busy_s, step, table))


@given(
    durations_s=arrays(np.float64, st.tuples(st.integers(1, 40), st.just(6)), elements=st.floats(1e-9, 1)),
    table=st.sampled_from([None, MEASURED]),
    overlap=st.floats(0.1, 1),
    energy_j=st.floats(1e-6, 1e6),
    duration_s=st.floats(1e-6, 100),
    base_w=st.none() | st.floats(0, 1000),
)
def test_accounts_sum_to_the_counter(
    durations_s: np.ndarray,
    table: WattTable | None,
    overlap: float,
    energy_j: float,
    duration_s: float,
    base_w: float | None,
) -> None:
    durations_s = durations_s if table else durations_s[:, : len(CLASSES)]
    step = a_step(energy_j, duration_s, base_w)
    energies_j, off_j, idle_j, idle_off_j = shared(durations_s, float(durations_s.sum()) * overlap, step, table)
    assert math.fsum([*energies_j.tolist(), idle_j]) == pytest.approx(energy_j, rel=1e-12)
    assert (energies_j >= -1e-9 * energy_j).all()
    assert 0 <= idle_j <= energy_j
    assert (off_j >= 0).all()
    assert idle_off_j >= 0


@pytest.mark.parametrize(
    ("before_w", "after_w", "base_w", "off_w"),
    [(120.0, 124.0, 122.0, 2.0), (None, 124.0, 124.0, 124.0 * ONE_BASE_FRAC), (None, None, 80.0, 20.0)],
)
def test_the_error_of_the_idle_power_is_known_from_one_measurement(
    before_w: float | None, after_w: float | None, base_w: float, off_w: float
) -> None:
    found = PassEnergy(
        device_idx=0, first_step=1, last_step=2, start_ns=0, end_ns=1, uncertainty_j=None,
        base_before_w=before_w, base_after_w=after_w, idle_w=80.0,
    )  # fmt: skip
    assert _base(found) == pytest.approx((base_w, off_w))


def test_idle_time_takes_the_base_power_and_nothing_more() -> None:
    energies_j, _, idle_j, _ = shared(np.array([[0.05, 0, 0, 0], [0.05, 0, 0, 0]]), 0.1, a_step())
    assert idle_j == pytest.approx(100 * 0.1)
    assert energies_j == pytest.approx([45, 45])


def test_a_matrix_product_takes_more_than_a_copy_of_the_same_length_and_the_bounds_hold_the_even_share() -> None:
    durations_s = np.zeros((2, len(CLASSES)))
    durations_s[0, MATRIX] = durations_s[1, MEMORY] = 0.1
    energies_j, off_j, idle_j, _ = shared(durations_s, 0.2, a_step())
    assert idle_j == 0
    assert energies_j[0] / energies_j[1] == pytest.approx((10 + 80 / 1.65) / (10 + 80 * 0.65 / 1.65))
    assert energies_j[0] - off_j[0] < 50 < energies_j[0]


def test_a_step_that_used_less_than_the_idle_card_goes_by_time() -> None:
    durations_s = np.zeros((2, len(CLASSES)))
    durations_s[0, MATRIX], durations_s[1, MEMORY] = 0.15, 0.05
    energies_j, *_ = shared(durations_s, 0.2, a_step(energy_j=5.0))
    assert energies_j == pytest.approx([3.75, 1.25])


@pytest.mark.parametrize("dynamic_j", [70.0, 82.5, 95.0])
def test_measured_watts_give_way_less_than_assumed_ones_and_both_come_to_the_steps_joules(dynamic_j: float) -> None:
    """0.1 s of products at 500 W take 50 J, 0.1 s of what moves bytes 32.5 J where a weight of 1 stands for 500 W."""
    durations_s = np.zeros((2, len(CLASSES) + 2))
    durations_s[0, len(CLASSES)] = durations_s[1, MEMORY] = 0.1
    step = a_step(energy_j=20 + dynamic_j)
    weights = weigh(durations_s, 0.2, step, MEASURED)
    assert weights.measured_frac == pytest.approx(0.5)
    measured_j, assumed_j = durations_s @ weights.watts
    assert measured_j + assumed_j == pytest.approx(dynamic_j)
    assert abs(measured_j / 50 - 1) <= abs(assumed_j / 32.5 - 1)
    energies_j, off_j, *_ = shared(durations_s, 0.2, step, MEASURED)
    assert energies_j == pytest.approx([10 + measured_j, 10 + assumed_j])
    assert (off_j > 0).all()


def test_a_little_that_was_not_measured_does_not_pay_for_what_was() -> None:
    """Of 100 J expected 98 were measured, and the counter has 95: the other two are hardly fewer."""
    durations_s = np.zeros((2, len(CLASSES) + 2))
    durations_s[0, len(CLASSES)], durations_s[1, MEMORY] = 0.196, 2 / (500 * 0.65)
    busy_s = float(durations_s.sum())
    weights = weigh(durations_s, busy_s, a_step(energy_j=95 + 100 * max(busy_s, 0.2)), MEASURED)
    measured_j, assumed_j = durations_s @ weights.watts
    assert measured_j + assumed_j == pytest.approx(95)
    assert assumed_j == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize("energy_j", [1.0, 21.0, 1e4])
def test_no_step_makes_watts_that_are_not_likely(energy_j: float) -> None:
    durations_s = np.zeros((2, len(CLASSES) + 2))
    durations_s[0, len(CLASSES)] = durations_s[1, MEMORY] = 0.1
    watts = weigh(durations_s, 0.2, a_step(energy_j=energy_j), MEASURED).watts
    assert 250 <= watts[len(CLASSES)] <= 750
    assert 0.5 * 325 <= watts[MEMORY] <= 1.5 * 325


def test_a_spread_that_was_measured_is_narrower_than_an_assumed_one() -> None:
    known, assumed = (np.zeros((2, len(CLASSES) + 2)) for _ in range(2))
    known[:, len(CLASSES)] = assumed[:, MATRIX] = 0.1
    assert (shared(known, 0.2, a_step(), MEASURED)[1] < shared(assumed, 0.2, a_step(), MEASURED)[1]).all()


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", "kernel", "matrix"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", "kernel", "matrix"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "kernel", "memory"),
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16", "kernel", "matrix"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "collective", "collective"),
        ("Memcpy DtoD (Device -> Device)", "copy", "memory"),
        ("aten::addmm", "host", "matrix"),
        ("aten::mm", "host", "matrix"),
        ("aten::relu", "host", "memory"),
        ("my_own_kernel", "kernel", "other"),
    ],
)
def test_kinds_of_work_are_told_by_name(name: str, kind: str, expected: str) -> None:
    assert CLASSES[class_of(name, kind)].name == expected


@given(
    durations_s=arrays(np.float64, st.tuples(st.integers(2, 6), st.just(3)), elements=st.floats(0.01, 0.1)),
    base_w=st.floats(50, 100),
    off_w=st.floats(1, 20),
)
def test_plus_or_minus_is_what_another_base_power_would_change(
    durations_s: np.ndarray, base_w: float, off_w: float
) -> None:
    """Where the power of each kind of work is known, the base power alone is uncertain."""
    watts = np.array([700.0, 300.0, 100.0])
    weights = Weights(watts, watts, watts, 1.0, 0.0)
    length_s = 1.2 * float(durations_s.sum())
    step = StepEnergy(0, 1, 400.0 * length_s, 0.0, length_s, base_w, off_w, ())
    busy_s = float(durations_s.sum())
    energies_j, off_j, idle_j, idle_off_j = apportion(durations_s, busy_s, step, weights)
    other_j, _, other_idle_j, _ = apportion(durations_s, busy_s, replace(step, base_w=base_w + off_w), weights)
    assert np.abs(other_j - energies_j) == pytest.approx(off_j, abs=1e-6)
    assert abs(other_idle_j - idle_j) == pytest.approx(idle_off_j, abs=1e-6)


def test_the_counters_uncertainty_is_shared_as_the_energy_is() -> None:
    watts = np.array([700.0, 300.0])
    step = StepEnergy(0, 1, 100.0, 3.0, 0.2, 100.0, 0.0, ())
    energies_j, off_j, idle_j, idle_off_j = apportion(
        np.diag([0.05, 0.05]), 0.1, step, Weights(watts, watts, watts, 1.0, 0.0)
    )
    assert off_j == pytest.approx(0.03 * energies_j)
    assert idle_off_j == pytest.approx(0.03 * idle_j)


def test_bounds_of_power_become_half_the_range_of_each_share() -> None:
    """Of 80 J above the base, work of 1 to 3 and of 2 W shares 1/3 to 3/5; both are off by half of that."""
    weights = Weights(np.array([2.0, 2.0]), np.array([1.0, 2.0]), np.array([3.0, 2.0]), 1.0, 0.0)
    step = StepEnergy(0, 1, 100.0, 0.0, 0.2, 100.0, 0.0, ())
    _, off_j, _, _ = apportion(np.diag([0.1, 0.1]), 0.2, step, weights)
    assert off_j == pytest.approx(np.full(2, 80 * (3 / 5 - 1 / 3) / 2))


def test_what_the_model_tells_of_a_type_is_as_uncertain_as_the_types_that_were_measured() -> None:
    model: Any = SimpleNamespace(levels_w=np.array([100.0, 200.0]), bounds=(0.5, 3.0))
    known_w, told_w = _known_watts(replace(MEASURED, low_frac=0.5, high_frac=2.0), model)
    assert known_w.tolist() == [
        [500, 450, 550],
        [20, 10, 80],
        [100, 50, 200],
        [200, 100, 400],
    ]
    assert told_w.tolist() == [[100, 50, 300], [200, 100, 600]]
    assert _known_watts(None, model)[0].tolist() == [[100] * 3, [200] * 3]


@pytest.mark.parametrize(
    ("energy_j", "base_w", "on_host", "words"),
    [
        (20.0, None, False, ["base power is unknown"]),
        (20.0, 100.0, False, []),  # as much as an idle GPU uses
        (19.9, 100.0, False, ["less energy than an idle GPU"]),
        (19.9, 100.0, True, ["less energy than an idle GPU", "No kernels were seen"]),
    ],
)
def test_what_is_unusual_about_a_steps_energy_is_said(
    energy_j: float, base_w: float | None, on_host: bool, words: list[str]
) -> None:
    work: Any = SimpleNamespace(on_host=on_host)
    notes = _notes(a_step(energy_j, 0.2, base_w), work)
    assert [word in note for word, note in zip(words, notes, strict=True)] == [True] * len(words)
    assert _notes(a_step(), None) == [
        "Energy is known for whole steps only, because the run has no timing measurement."
    ]
