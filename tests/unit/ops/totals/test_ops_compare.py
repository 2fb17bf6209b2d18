"""Sums of operators beside whole models: at which step time their energies are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.totals.compare import Pair, Recorded, Whole, pairs_document
from gpuledger.ops.totals.sum import sum_up
from gpuledger.ops.workloads.workload import Use, Workload

ENVIRONMENT = Environment("a GPU", None, "2.11.0", None)
KEY = OperatorKey("aten.relu.default", ({"shape": [4], "dtype": "float32", "stride": [1]},))
IDLE_W, CALL_NS, CALL_J, LAUNCH_NS = 100.0, 1e6, 0.5, 3e6


def pair_at(energy_step_ns: float | None) -> Pair:
    """Return a pair whose sum waits 2 ms of 3 ms for its launch, at 100 W."""
    record = Record(
        KEY.digest, ENVIRONMENT.digest, {"mode": "hot"}, CALL_NS, CALL_NS, CALL_NS, CALL_J, CALL_J, CALL_J, IDLE_W,
        blocks=({"kind": "summary", "host_ns": LAUNCH_NS, "queued_ns": CALL_NS},),
    )  # fmt: skip
    total = sum_up(Workload("a", "inference", (Use(KEY, 1),)), [record], ENVIRONMENT)
    assert (total.step_ns, total.busy_ns) == (LAUNCH_NS, CALL_NS)
    assert total.energy_j == pytest.approx(CALL_J + IDLE_W * (LAUNCH_NS - CALL_NS) / 1e9)
    whole = Whole(Recorded(LAUNCH_NS, None, None), Recorded(1.0, None, None), IDLE_W, 0, energy_step_ns=energy_step_ns)
    return Pair("a", "inference", total, whole)


@pytest.mark.parametrize(
    ("energy_step_ns", "energy_j"),
    [
        (None, 0.7),  # the time is unknown: at the time of the sum
        (3e6, 0.7),
        (5e6, 0.9),  # the host was slower while the energy was measured
        (2e6, 0.6),
        (0.5e6, 0.5),  # no step is shorter than its operators
    ],
)
def test_energies_are_compared_at_the_step_time_of_the_energy_measurement(
    energy_step_ns: float | None, energy_j: float
) -> None:
    pair = pair_at(energy_step_ns)
    assert pair.energy_frac == pytest.approx(energy_j)
    (document,) = pairs_document([pair], {})["pairs"]
    assert (document["energy_step_ns"], document["energy_frac"]) == (energy_step_ns, pair.energy_frac)


def test_a_step_that_never_waits_has_no_idle_power_to_add() -> None:
    pair = pair_at(9e6)
    assert replace(pair, sum=replace(pair.sum, step_ns=CALL_NS)).waiting_j == 0.0
    assert replace(pair, sum=replace(pair.sum, is_capped=True)).waiting_j == 0.0
