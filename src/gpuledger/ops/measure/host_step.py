"""Measure the host time of a step on the model itself: what Python, PyTorch and the launches take without the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from gpuledger.errors import GpuLedgerError
from gpuledger.ops.database.host_overhead import host_record, host_step_key
from gpuledger.ops.database.operator_database import OperatorDatabase
from gpuledger.ops.database.statistics import Spread, summarize
from gpuledger.ops.measure.blocks import Clock
from gpuledger.ops.measure.captured_models import step_of
from gpuledger.ops.measure.measured_device import Device
from gpuledger.ops.workloads.workload import Workload

WARM_UP, LEAST_ROUNDS, MOST_ROUNDS = 5, 15, 200
LONG_ENOUGH_NS = 500_000_000
"""Duration of the measurement, in ns: the speed of a shared host changes from one moment to the next."""


def fill_host_steps(
    workloads: Sequence[Workload],
    database: OperatorDatabase,
    place: Device,
    *,
    trusted: bool = False,
    clock_ns: Clock = time.time_ns,
) -> int:
    """Measure the host time of a step of each model that is missing from the database. Return how many were measured.

    A workload of a program has no model that could run again. Neither has a file that names code, unless it is trusted,
    and a model that does not fit into memory. The sums of these use the launches of their operators.

    Args:
        workloads: The workloads.
        database: The database for the records.
        place: The device. Nothing is measured on a CPU, where host and device are the same.
        trusted: Allow code that a workload names.
        clock_ns: Returns Unix time in ns.
    """
    if not place.on_card:
        return 0
    found = {key: one for one in workloads if (key := host_step_key(one.settings, one.mode)) is not None}
    lacking = database.missing([key.digest for key in found], place.environment)
    measured = 0
    for key, workload in found.items():
        if key.digest not in lacking:
            continue
        try:
            rounds_ns = host_rounds_ns(step_of(workload, place, trusted=trusted), torch.cuda.synchronize)
        except (GpuLedgerError, torch.OutOfMemoryError):
            continue
        put_host_step(database, place, workload, summarize(rounds_ns), clock_ns=clock_ns)
        measured += 1
    return measured


def put_host_step(
    database: OperatorDatabase,
    place: Device,
    workload: Workload,
    host_ns: Spread,
    *,
    clock_ns: Clock = time.time_ns,
) -> None:
    """Store the host time of a step of a workload's model. Nothing is stored for a workload of a program."""
    key = host_step_key(workload.settings, workload.mode)
    if key is None:
        return
    database.put_environment(place.environment)
    database.put_keys([key])
    record = host_record(key, place.environment, host_ns, {"how": "step"}, clock_ns())
    database.put_records([record])


def host_rounds_ns(step: Callable[[], object], wait: Callable[[], None]) -> list[float]:
    """Return the host time of one call of ``step`` in ns, for each of several rounds.

    Each round begins on an idle GPU, so that the queue of launches is empty. The time of a step with more launches than
    the queue holds (about a thousand), or which reads a value of the GPU, includes the wait for the GPU.

    Args:
        step: Runs one step, without waiting for the GPU.
        wait: Waits for the GPU.

    Source: host clock around the launches of a step.
    """
    for _ in range(WARM_UP):
        step()
    rounds_ns: list[float] = []
    while len(rounds_ns) < LEAST_ROUNDS or (sum(rounds_ns) < LONG_ENOUGH_NS and len(rounds_ns) < MOST_ROUNDS):
        wait()
        start_ns = time.perf_counter_ns()
        step()
        rounds_ns.append(float(time.perf_counter_ns() - start_ns))
    wait()
    return rounds_ns
