"""The CPU time of an eager step is predicted from its calls, and holds for architectures that the fit did not have."""

from __future__ import annotations

import statistics

import pytest
from folders import BENCH
from libraries import needs

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.host_overhead import host_record, host_step_key
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.database.statistics import summarize
from gpuledger.ops.totals.predicted_host import StepCounts, counts_of, fitted_times, predicted_host, time_of
from gpuledger.ops.totals.sum import Waiting, sum_up
from gpuledger.ops.workloads.workload import Use, Workload

HERE = Environment("NVIDIA H200", "1", "2.11", "13", {"cache_bytes": 1000})
KEY = OperatorKey("aten.relu.default", ({"shape": [4], "dtype": "float32", "stride": [1]},))
SETTINGS = {
    "model": "m:m",
    "module_calls": 5,
    "autograd_nodes": 7,
    "no_kernel": {"aten.view.default": 2, "aten.t.default": 1},
    "host_calls": 4,
}


def workload(**settings: object) -> Workload:
    return Workload("m", "inference", (Use(KEY, 3),), (), {**SETTINGS, **settings})


def record(base_w: float | None = None, host_ns: float | None = 10.0) -> Record:
    blocks = ({"kind": "summary", "host_ns": host_ns}, {"kind": "energy", "call_ns": 1e3})
    return Record(
        KEY.digest, HERE.digest, {"mode": "rotating"}, 1e3, 1e3, 1e3, 2e-4, 2e-4, 2e-4, base_w=base_w, blocks=blocks
    )


def test_each_kind_of_call_has_its_time() -> None:
    assert counts_of(workload()) == StepCounts(operators=3, others=7, modules=5, nodes=7)
    found, times = predicted_host(workload()), fitted_times()
    assert found is not None
    assert found.time_ns == time_of(StepCounts(3, 7, 5, 7), times.call_ns)
    assert found.low_ns == pytest.approx(found.time_ns * times.low_frac)
    assert found.high_ns == pytest.approx(found.time_ns * times.high_frac)
    assert time_of(StepCounts(1, 10, 100, 1000), (1.0, 2.0, 3.0, 4.0)) == 4321


@pytest.mark.parametrize("lacking", ["module_calls", "autograd_nodes"])
def test_without_the_numbers_of_calls_it_is_unknown(lacking: str) -> None:
    assert predicted_host(workload(**{lacking: None})) is None
    assert counts_of(workload(no_kernel=None, host_calls=None)) == StepCounts(3, 0, 5, 7)


@pytest.mark.parametrize(
    ("convolutions", "autocast", "is_known"), [(3, None, True), (2, None, False), (3, "bfloat16", False)]
)
def test_a_training_unlike_the_fitted_ones_is_unknown(convolutions: int, autocast: str | None, is_known: bool) -> None:
    backward = OperatorKey("aten.convolution_backward.default", KEY.inputs)
    settings = {**SETTINGS, "autograd_nodes": 30, "autocast": autocast}
    trained = Workload("m", "training", (Use(KEY, 3), Use(backward, convolutions)), (), settings)
    assert (predicted_host(trained) is not None) is is_known
    assert predicted_host(workload(autocast=autocast)) is not None


def test_a_predicted_time_replaces_the_sum_of_launches_and_a_measured_one_replaces_both() -> None:
    assert sum_up(workload(), [record()], HERE).host_ns == 30
    assert sum_up(workload(), [record()], HERE, waiting=Waiting(9e3)).host_ns == 9e3
    key = host_step_key(SETTINGS, "inference")
    assert key is not None
    measured = host_record(key, HERE, summarize([4e3] * 5), {"how": "step"}, 1)
    total = sum_up(workload(), [record(), measured], HERE, waiting=Waiting(9e3))
    assert (total.host_ns, total.is_host_measured) == (4e3, True)
    assert (total.gpu_ns, total.step_ns) == (3e3, 4e3)


@pytest.mark.parametrize(
    ("base_w", "idle_w", "waited_w"),
    [(100.0, None, 100.0), (None, 80.0, 80.0), (100.0, 80.0, 100.0), (None, None, 0.0)],
)
def test_waiting_takes_the_idle_power(base_w: float | None, idle_w: float | None, waited_w: float) -> None:
    total = sum_up(workload(), [record(base_w)], HERE, waiting=Waiting(9e3, idle_w))
    assert total.step_ns == 9e3
    assert total.energy_j == pytest.approx(6e-4 + waited_w * 6e3 / 1e9)
    assert total.busy_energy_j == pytest.approx(6e-4)


@pytest.mark.skipif(not BENCH.is_dir(), reason="an sdist has no benchmarks")
@needs("scipy")
def test_the_shipped_times_are_those_of_the_measured_models() -> None:
    import make_host_times

    assert make_host_times.PLACE.read_text(encoding="utf-8") == make_host_times.host_times()


@pytest.mark.skipif(not BENCH.is_dir(), reason="an sdist has no benchmarks")
@needs("scipy")
def test_it_holds_for_models_whose_architecture_is_left_out() -> None:
    import make_host_times  # noqa: F401  # makes host_fit importable
    from host_fit import predict_left_out, read_host_examples

    examples = [one for one in read_host_examples() if not one.waits_for_gpu]
    shares = [one.cpu_ns / time_ns for one, time_ns in zip(examples, predict_left_out(examples), strict=True)]
    assert len(shares) > 50
    assert statistics.median(abs(share - 1) for share in shares) < 0.12
    times = fitted_times()
    inside = [times.low_frac <= share <= times.high_frac for share in shares]
    assert 0.87 < sum(inside) / len(inside) < 0.96
    a_call_ns = [one.cpu_ns / one.counts.operators for one in examples]  # one time for each operator, and nothing else
    errors = [[abs(share - 1) for share in found] for found in (shares, scaled(a_call_ns))]
    assert statistics.median(errors[1]) > 2 * statistics.median(errors[0])


def scaled(values: list[float]) -> list[float]:
    middle = statistics.median(values)
    return [value / middle for value in values]
