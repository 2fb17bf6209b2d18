"""Sums: what they are made of, what they leave out, and what the power cap and the host add."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from present import present

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.method import Mode, mode_weights
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.totals.cost import MEASURED, Cost, cost_of, mixed, with_power_of
from gpuledger.ops.totals.coverage import has_total, measured_calls_frac
from gpuledger.ops.totals.sum import FAILED, PREDICTED, UNKNOWN, sum_up
from gpuledger.ops.totals.type_totals import by_type
from gpuledger.ops.workloads.workload import Use, Workload

ENVIRONMENT = Environment("card", "1", "2.13", "13", {"cache_bytes": 1000, "power_limit_w": 700.0})


def key_of_size(size: int, name: str = "relu") -> OperatorKey:
    return OperatorKey(f"aten.{name}.default", ({"shape": [size], "dtype": "float32", "stride": [1]},))


def record_of(
    key: OperatorKey,
    time_ns: float,
    energy_j: float | None = None,
    *,
    mode: Mode = Mode.ROTATING,
    base_w: float | None = None,
    half: float = 0.0,
    host_ns: float | None = None,
    at: int = 1,
    window_ns: float | None = None,
) -> Record:
    blocks: tuple[dict[str, Any], ...] = ({"kind": "summary", "host_ns": host_ns},)
    if energy_j is not None:
        blocks += ({"kind": "energy", "call_ns": window_ns or time_ns},)
    return Record(
        key.digest, ENVIRONMENT.digest, {"mode": mode.value}, time_ns, time_ns - half, time_ns + half, energy_j,
        energy_j, energy_j, base_w, blocks, measured_ns=at,
    )  # fmt: skip


def workload_of(*uses: Use) -> Workload:
    return Workload("model", "inference", tuple(uses))


counts = st.lists(st.tuples(st.integers(1, 500), st.floats(1, 1e7), st.floats(1e-6, 10)), min_size=1, max_size=12)


@given(counts)
def test_a_sum_is_every_count_times_its_cost_and_its_types_add_up_to_it(found: list[tuple[int, float, float]]) -> None:
    keys = [key_of_size(place + 1, f"op{place % 3}") for place in range(len(found))]
    workload = workload_of(*(Use(key, count) for key, (count, _, _) in zip(keys, found, strict=True)))
    records = [record_of(key, time_ns, energy_j) for key, (_, time_ns, energy_j) in zip(keys, found, strict=True)]
    total = sum_up(workload, records, replace(ENVIRONMENT, flags={}))
    assert total.busy_ns == pytest.approx(sum(count * time_ns for count, time_ns, _ in found))
    assert total.energy_j == pytest.approx(sum(count * energy_j for count, _, energy_j in found))
    assert total.step_ns == total.busy_ns
    assert (total.calls_frac, total.time_frac, total.energy_frac) == pytest.approx((1.0, 1.0, 1.0))
    assert sum(present(one.time_ns) for one in by_type(total)) == pytest.approx(total.busy_ns)
    assert sum(present(one.energy_j) for one in by_type(total)) == pytest.approx(total.energy_j)
    assert sum(one.count for one in by_type(total)) == workload.calls


def test_an_error_counts_with_every_call_of_its_operator_and_joins_others_in_squares() -> None:
    one, other = key_of_size(1), key_of_size(2)
    total = sum_up(
        workload_of(Use(one, 30), Use(other, 40)),
        [record_of(one, 100.0, half=1.0), record_of(other, 100.0, half=1.0)],
        ENVIRONMENT,
    )
    assert total.busy_half_ns == pytest.approx(math.hypot(30, 40))


def test_what_the_database_lacks_is_counted_and_not_taken_for_nothing() -> None:
    known, unknown, broken = key_of_size(1), key_of_size(2), key_of_size(3)
    failed = replace(record_of(broken, 1.0), time_median_ns=None, status="failed", reason="out of memory")
    total = sum_up(
        workload_of(Use(known, 6), Use(unknown, 3), Use(broken, 1)), [record_of(known, 10.0), failed], ENVIRONMENT
    )
    assert total.busy_ns == 60
    assert total.calls_frac == pytest.approx(0.6)
    assert [line.source for line in total.lines] == [MEASURED, UNKNOWN, FAILED]
    assert total.lines[2].reason == "out of memory"
    assert total.notes == ("1 operator (1 call) could not be measured", "1 operator (3 calls) not measured")
    assert total.energy_j is None


class Fixed:
    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self.asked: list[tuple[OperatorKey, bool]] = []

    def costs(self, keys: Sequence[OperatorKey], hot: Sequence[bool]) -> list[Cost]:
        self.asked += list(zip(keys, hot, strict=True))
        return [self.cost] * len(keys)


def test_a_prediction_stands_in_for_what_is_lacking_and_is_marked() -> None:
    both, time_only, lacking = key_of_size(1), key_of_size(2), key_of_size(3)
    fixed = Fixed(Cost(100.0, 90.0, 110.0, 2.0, 1.0, 3.0, source=PREDICTED))
    total = sum_up(
        workload_of(Use(both, 1), Use(time_only, 1), Use(lacking, 1)),
        [record_of(both, 50.0, 1.0), record_of(time_only, 50.0)],
        ENVIRONMENT,
        predictor=fixed,
    )
    assert {key for key, _ in fixed.asked} == {time_only, lacking}
    assert [(line.source, line.energy_source) for line in total.lines] == [
        (MEASURED, MEASURED), (MEASURED, PREDICTED), (PREDICTED, PREDICTED),
    ]  # fmt: skip
    assert total.busy_ns == 200
    assert [line.energy_j for line in total.lines] == pytest.approx(
        [1.0, 1.0, 2.0]
    )  # time alone: at the power predicted
    assert total.time_frac == pytest.approx(0.5)
    assert total.energy_frac == pytest.approx(0.25)


def test_the_waiting_cards_power_is_paid_for_gaps_too() -> None:
    key = key_of_size(1)
    records = [record_of(key, 1e6, 0.3, base_w=100.0, host_ns=2e6)]
    total = sum_up(workload_of(Use(key, 1000)), records, ENVIRONMENT)
    assert total.busy_ns == 1e9
    assert total.host_ns == total.step_ns == 2e9  # the host launches too slowly: the GPU waits for half of the time
    assert total.energy_j == pytest.approx(300 + 100)


def test_a_time_that_would_take_more_than_the_power_limit_is_stretched() -> None:
    key = key_of_size(1)
    total = sum_up(workload_of(Use(key, 1000)), [record_of(key, 1e6, 1.0, base_w=100.0)], ENVIRONMENT)
    assert total.is_capped
    assert total.notes == ("times are longer than measured, because the whole would exceed the GPU's power limit",)
    assert total.step_ns == pytest.approx(900 / 600 * 1e9)
    assert present(total.energy_j) / (total.step_ns / 1e9) == pytest.approx(700)


def test_a_sustained_windows_base_power_is_taken_for_a_bursts_time() -> None:
    key = key_of_size(1)
    records = [record_of(key, 1e6, 0.5, base_w=100.0, window_ns=1.5e6)]
    total = sum_up(workload_of(Use(key, 1)), records, ENVIRONMENT)
    assert total.energy_j == pytest.approx(0.5 - 100.0 * 0.5e-3)


def test_reuse_decides_between_hot_and_rotating() -> None:
    key = key_of_size(1)
    records = [record_of(key, 10.0, mode=Mode.HOT), record_of(key, 20.0, mode=Mode.ROTATING)]

    def busy(reuse_bytes: float | None) -> float:
        return sum_up(workload_of(Use(key, 1, (), reuse_bytes)), records, ENVIRONMENT).busy_ns

    assert (busy(100), busy(None), busy(5000), busy(1250)) == pytest.approx((10.0, 20.0, 20.0, 15.0))
    one_mode = sum_up(workload_of(Use(key, 1, (), 100)), records[1:], ENVIRONMENT)
    assert one_mode.busy_ns == 20.0


@given(st.one_of(st.none(), st.floats(0, 1e6)), st.integers(1, 10**6))
def test_the_weights_of_modes_sum_to_one(reuse_bytes: float | None, cache_bytes: int) -> None:
    weights = mode_weights(reuse_bytes, cache_bytes)
    assert sum(weights.values()) == pytest.approx(1.0)
    assert all(weight >= 0 for weight in weights.values())


def test_a_mode_timed_alone_is_taken_to_draw_the_power_of_the_other() -> None:
    """2 mJ in a ns: 0.2 J in the 100 ns of the first, with its interval of time."""
    timed, whole = Cost(100.0, 90.0, 110.0), Cost(200.0, 180.0, 220.0, 0.4, 0.3, 0.5)
    found = mixed([(timed, 0.25), (whole, 0.75)])
    assert (found.time_ns, found.time_low_ns, found.time_high_ns) == (175.0, 157.5, 192.5)
    assert found.energy_j == pytest.approx(0.25 * 0.2 + 0.75 * 0.4)
    assert found.energy_low_j == pytest.approx(0.25 * 0.18 + 0.75 * 0.3)
    assert found.energy_high_j == pytest.approx(0.25 * 0.22 + 0.75 * 0.5)
    assert mixed([(timed, 0.5), (timed, 0.5)]).energy_j is None
    assert mixed([(replace(timed, time_low_ns=None), 0.5), (whole, 0.5)]).energy_low_j is None


def test_the_newest_record_counts_but_one_with_energy_is_kept() -> None:
    key = key_of_size(1)
    workload = workload_of(Use(key, 1))
    newer = sum_up(
        workload, [record_of(key, 30.0, at=3), record_of(key, 10.0, at=1), record_of(key, 20.0, at=2)], ENVIRONMENT
    )
    assert newer.busy_ns == 30.0
    kept = sum_up(workload, [record_of(key, 10.0, 1.0, at=1), record_of(key, 20.0, at=2)], ENVIRONMENT)
    assert (kept.busy_ns, kept.energy_j) == (10.0, 1.0)
    failed = replace(record_of(key, 1.0, at=9), status="failed", reason="gone")
    assert sum_up(workload, [record_of(key, 10.0, at=1), failed], ENVIRONMENT).busy_ns == 10.0


def test_only_some_operators_can_be_added_up() -> None:
    one, other = key_of_size(1), key_of_size(2)
    total = sum_up(
        workload_of(Use(one, 1), Use(other, 1)),
        [record_of(one, 5.0), record_of(other, 7.0)],
        ENVIRONMENT,
        only={one.digest},
    )
    assert total.busy_ns == 5.0
    assert total.lines[1].reason == "not asked for"
    assert total.notes == ("1 operator (1 call) not asked for",)
    assert [(kind.time_ns, kind.count) for kind in by_type(total)] == [(5.0, 1)]


def test_a_type_of_which_nothing_is_measured_has_no_time_and_is_not_nothing() -> None:
    one, other = key_of_size(1, "known"), key_of_size(2, "lacking")
    total = sum_up(workload_of(Use(one, 1), Use(other, 3)), [record_of(one, 5.0)], ENVIRONMENT)
    assert total.notes == ("1 operator (3 calls) not measured",)
    assert [(kind.time_ns, kind.time_half_ns, kind.unknown) for kind in by_type(total)][1] == (None, None, 1)


def test_the_energy_of_what_is_timed_alone_is_predicted_and_said_so() -> None:
    both, time_only, lacking = key_of_size(1), key_of_size(2), key_of_size(3)
    workload = workload_of(Use(both, 2), Use(time_only, 3), Use(lacking, 5))
    records = [record_of(both, 1_000.0, 0.5), record_of(time_only, 100.0)]
    environment = replace(ENVIRONMENT, flags={})
    left_out = sum_up(workload, records, environment)
    whole = sum_up(workload, records, environment, energy_predictor=Fixed(Cost(1e3, 1e3, 1e3, 0.25, 0.2, 0.3)))
    assert left_out.energy_j == pytest.approx(1.0)
    assert whole.energy_j == pytest.approx(1.0 + 3 * 0.25 * 100 / 1_000)
    assert whole.energy_half_j == pytest.approx(3 * 0.05 * 100 / 1_000)  # as sure as the power that is predicted
    assert whole.busy_ns == left_out.busy_ns
    assert "the energy of 1 operator (3 calls) is predicted" in whole.notes


def test_calls_launched_one_by_one_are_a_moment_apart() -> None:
    known, unknown = key_of_size(1), key_of_size(2)
    told = record_of(known, 1_000.0)
    told = replace(told, blocks=({"kind": "summary", "queued_ns": 1_300.0, "host_ns": 10.0},))
    total = sum_up(workload_of(Use(known, 2), Use(unknown, 5)), [told, record_of(unknown, 100.0)], ENVIRONMENT)
    assert total.busy_ns == 2_500
    assert total.queued_ns == total.step_ns == pytest.approx(2 * 1_300 + 5 * (100 + 300))


def test_a_call_launched_alone_takes_at_least_its_time_in_a_graph() -> None:
    """Its last output can be in the cache, which makes it look faster; the gap of such a call is none."""
    known, other = key_of_size(1), key_of_size(2)
    told = replace(record_of(known, 1_000.0), blocks=({"kind": "summary", "queued_ns": 900.0, "host_ns": 10.0},))
    total = sum_up(workload_of(Use(known, 3), Use(other, 2)), [told, record_of(other, 100.0)], ENVIRONMENT)
    assert total.queued_ns == pytest.approx(3 * 1_000 + 2 * 100)


@pytest.mark.parametrize(("measured", "is_total"), [(94, False), (95, True), (100, True)])
def test_a_total_needs_95_of_100_calls(measured: int, is_total: bool) -> None:
    known, missing = key_of_size(1), key_of_size(2)
    uses = [Use(known, measured), *([Use(missing, 100 - measured)] if measured < 100 else [])]
    total = sum_up(workload_of(*uses), [record_of(known, 10.0)], ENVIRONMENT)
    assert measured_calls_frac(total) == pytest.approx(measured / 100)
    assert has_total(total) == is_total


def test_only_requested_calls_count_towards_the_share_that_a_total_needs() -> None:
    known, missing = key_of_size(1), key_of_size(2)
    total = sum_up(
        workload_of(Use(known, 1), Use(missing, 99)), [record_of(known, 10.0)], ENVIRONMENT, only={known.digest}
    )
    assert measured_calls_frac(total) == 1.0
    assert has_total(total)


@pytest.mark.parametrize("uses", [(), (Use(key_of_size(1), 3),)])
def test_a_sum_of_nothing_known_is_nothing_with_no_share(uses: tuple[Use, ...]) -> None:
    total = sum_up(workload_of(*uses), [], ENVIRONMENT)
    assert (total.busy_ns, total.step_ns, total.busy_half_ns, total.calls_frac) == (0.0, 0.0, 0.0, 0.0)
    found = (total.time_frac, total.energy_frac, total.energy_j, total.energy_half_j, total.queued_ns, total.host_ns)
    assert found == (None,) * 6
    assert not total.is_capped


@pytest.mark.parametrize(
    ("energy_j", "base_w", "limit_w", "step_s", "whole_j"),
    [
        (0.7, 100.0, 700.0, None, 700.0),  # exactly the limit
        (0.75, 100.0, 700.0, 650 / 600, 700.0 * 650 / 600),
        (0.75, 100.0, None, None, 750.0),
        (0.75, 100.0, 100.0, None, 750.0),  # a limit that the idle GPU reaches is none
        (0.75, None, 700.0, None, 750.0),  # what can be stretched is not known
    ],
)
def test_only_dynamic_energy_above_the_limit_takes_longer(
    energy_j: float, base_w: float | None, limit_w: float | None, step_s: float | None, whole_j: float
) -> None:
    key = key_of_size(1)
    environment = replace(ENVIRONMENT, flags={"power_limit_w": limit_w} if limit_w else {})
    total = sum_up(workload_of(Use(key, 1000)), [record_of(key, 1e6, energy_j, base_w=base_w)], environment)
    assert total.is_capped is (step_s is not None)
    assert total.step_ns == pytest.approx((step_s or 1.0) * 1e9)
    assert total.energy_j == total.busy_energy_j == pytest.approx(whole_j)


def test_the_idle_power_is_the_mean_over_the_time_in_which_it_was_measured() -> None:
    """Of operators with energy: 200 W for 1 ms and 50 W for 2 ms. It is paid while launches are waited for."""
    keys = [key_of_size(size) for size in range(1, 5)]
    records = [
        record_of(keys[0], 1e6, 0.3, base_w=200.0, host_ns=16e6),
        record_of(keys[1], 0.5e6, 0.1, base_w=50.0),
        record_of(keys[2], 2e6, 0.4),
        record_of(keys[3], 3e6, base_w=900.0),
    ]
    uses = [Use(key, count) for key, count in zip(keys, (1, 4, 1, 1), strict=True)]
    total = sum_up(workload_of(*uses), records, replace(ENVIRONMENT, flags={}))
    assert (total.busy_ns, total.host_ns, total.step_ns) == (8e6, 16e6, 16e6)
    dynamic_j = 0.3 + 4 * 0.1 + 0.4 - 100 * 5e-3
    assert total.energy_j == pytest.approx(dynamic_j + 100 * 16e-3)
    assert total.busy_energy_j == pytest.approx(dynamic_j + 100 * 8e-3)


@pytest.mark.parametrize(("host_ns", "step_ns"), [(500.0, 2_800.0), (1_000.0, 3_000.0)])
def test_a_step_takes_as_long_as_its_launches_or_its_separate_calls(host_ns: float, step_ns: float) -> None:
    key = key_of_size(1)
    record = replace(record_of(key, 800.0), blocks=({"kind": "summary", "queued_ns": 2_800.0 / 3, "host_ns": host_ns},))
    total = sum_up(workload_of(Use(key, 3)), [record], ENVIRONMENT)
    assert (total.busy_ns, total.host_ns) == (2_400.0, 3 * host_ns)
    assert total.step_ns == pytest.approx(step_ns)


@pytest.mark.parametrize(("reuse_bytes", "is_hot"), [(100, True), (1_249, True), (1_250, False), (None, False)])
def test_what_is_more_often_in_the_cache_is_predicted_hot(reuse_bytes: float | None, is_hot: bool) -> None:
    """With 1,000 bytes of cache, half of the calls with 1,250 bytes between them are."""
    key, fixed = key_of_size(1), Fixed(Cost(1.0, None, None))
    total = sum_up(workload_of(Use(key, 2, (), reuse_bytes)), [], ENVIRONMENT, predictor=fixed)
    assert set(fixed.asked) == {(key, is_hot)}
    assert (total.busy_ns, total.busy_half_ns, total.energy_j, total.calls_frac) == (2.0, None, None, 0.0)
    assert [(line.source, line.energy_source) for line in total.lines] == [(PREDICTED, UNKNOWN)]


def test_a_failed_mode_is_replaced_by_the_other_one() -> None:
    key = key_of_size(1)
    failed = replace(record_of(key, 1.0, mode=Mode.ROTATING), time_median_ns=None, status="failed", reason="gone")
    total = sum_up(workload_of(Use(key, 2)), [failed, record_of(key, 10.0, mode=Mode.HOT)], ENVIRONMENT)
    assert (total.busy_ns, total.lines[0].source) == (20.0, MEASURED)
    half = sum_up(workload_of(Use(key, 2, (), 1_250)), [failed, record_of(key, 10.0, mode=Mode.HOT)], ENVIRONMENT)
    assert half.busy_ns == 20.0


@pytest.mark.parametrize(
    ("windows_ns", "energy_j"), [((), 0.5), ((1e6,), 0.5), ((1.5e6, 2.5e6), 0.4), ((9e6,), 0.0), ((0.5e6,), 0.55)]
)
def test_idle_power_is_for_the_time_of_a_call_in_a_burst(windows_ns: tuple[float, ...], energy_j: float) -> None:
    """Which is 1 ms at 100 W, where the windows of the energy have another mean. Energy is never negative."""
    record = record_of(key_of_size(1), 1e6, 0.5, base_w=100.0)
    blocks = ({"kind": "summary", "call_ns": 7e9}, *({"kind": "energy", "call_ns": one} for one in windows_ns))
    found = present(cost_of(replace(record, blocks=blocks, energy_low_j=0.45, energy_high_j=None)))
    assert found.energy_high_j is None
    assert found.energy_j == pytest.approx(energy_j)
    assert found.energy_low_j == pytest.approx(max(energy_j - 0.05, 0.0))


def test_a_predicted_power_has_the_interval_that_is_known_of_it() -> None:
    measured = Cost(200.0, 190.0, 210.0)
    whole = with_power_of(measured, Cost(100.0, 80.0, 120.0, 2.0, 1.2, 3.0))
    assert (whole.energy_j, whole.energy_low_j, whole.energy_high_j) == pytest.approx((4.0, 3.0, 5.0))
    bare = with_power_of(measured, Cost(100.0, 0.0, None, 2.0, 1.2, 3.0))
    assert (bare.energy_j, bare.energy_low_j, bare.energy_high_j) == pytest.approx((4.0, 4.0, 4.0))
    assert (bare.time_ns, bare.time_low_ns, bare.time_high_ns) == (200.0, 190.0, 210.0)


def test_an_interval_holds_its_ends() -> None:
    cost = Cost(2.0, 1.0, 3.0)
    assert [cost.holds(time_ns) for time_ns in (0.9, 1.0, 3.0, 3.1)] == [False, True, True, False]
    assert not any(one.holds(2.0) for one in (Cost(2.0, None, 3.0), Cost(2.0, 1.0, None)))
