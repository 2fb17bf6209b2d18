"""Measure workloads: first the time of every operator, then the energy of those with most of the time."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from gpuledger.ops.database.method import Method
from gpuledger.ops.database.operator_database import OperatorDatabase
from gpuledger.ops.database.records import Environment
from gpuledger.ops.measure.chains import fill_around
from gpuledger.ops.measure.host_step import fill_host_steps
from gpuledger.ops.measure.measure import OnProgress, Outcome, Task, measure
from gpuledger.ops.measure.measured_device import Device
from gpuledger.ops.measure.plan import lacking_for, missing_tasks, needs_energy, tasks_of
from gpuledger.ops.totals.sum import sum_up
from gpuledger.ops.workloads.workload import Use, Workload

ENERGY_SHARE_FRAC = 0.9
"""Share of each workload's time for which energy is measured, because that takes seconds per operator."""


@dataclass(frozen=True)
class Filled:
    """The result: times, and energies if there is a counter."""

    times: Outcome
    energies: Outcome | None

    @property
    def failed(self) -> int:
        """Return the number of failed operators."""
        return self.times.failed + (0 if self.energies is None else self.energies.failed)

    @property
    def left(self) -> int:
        """Return the number of operators left because of the time limit."""
        return self.times.left + (0 if self.energies is None else self.energies.left)


def fill(
    workloads: Sequence[Workload],
    database: OperatorDatabase,
    place: Device,
    method: Method,
    *,
    energy_share_frac: float = ENERGY_SHARE_FRAC,
    only: Collection[str] | None = None,
    budget_ns: int | None = None,
    on_progress: OnProgress | None = None,
) -> Filled:
    """Return the result of measuring the operators that are missing from the database.

    Args:
        workloads: The workloads. An operator that several use is measured once.
        database: The database for the records.
        place: The device.
        method: How to measure; ``energy`` selects whether energy is measured.
        energy_share_frac: See :data:`ENERGY_SHARE_FRAC`.
        only: Digests of the operators to measure; None for all.
        budget_ns: Time limit for all measurements, in ns.
        on_progress: Called before each operator.
    """
    uses = [use for workload in workloads for use in workload.uses if only is None or use.key.digest in only]
    fill_around(database, place, time.time_ns)
    fill_host_steps(workloads, database, place)
    tasks = missing_tasks(tasks_of(uses, place.cache_bytes), database, place, need_energy=False)
    deadline_ns = None if budget_ns is None else time.time_ns() + budget_ns
    times = measure(tasks, database, place, replace(method, energy=False), budget_ns=budget_ns, on_progress=on_progress)
    if not method.energy or place.sensors is None:
        return Filled(times, None)
    left_ns = None if deadline_ns is None else max(deadline_ns - time.time_ns(), 0)
    energy_tasks = energy_tasks_of(workloads, uses, database, place.environment, energy_share_frac)
    return Filled(times, measure(energy_tasks, database, place, method, budget_ns=left_ns, on_progress=on_progress))


def energy_tasks_of(
    workloads: Sequence[Workload],
    uses: Sequence[Use],
    database: OperatorDatabase,
    environment: Environment,
    energy_share_frac: float,
) -> list[Task]:
    """Return the tasks without energy in the database, for operators with the given share of a workload's time."""
    records = database.records(environment)
    wanted: set[str] = set()
    for workload in workloads:
        lines = sum_up(workload, records, environment).lines
        times_ns = {line.use.key.digest: line.cost.time_ns for line in lines if line.cost is not None}
        wanted |= needs_energy(workload, times_ns, energy_share_frac)
    chosen = [use for use in uses if use.key.digest in wanted]
    return lacking_for(chosen, database, environment, need_energy=True)
