"""Select what to measure: operators of workloads, in the required modes, that are missing from the database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuledger.ops.database.method import Mode, mode_weights
from gpuledger.ops.database.operator_database import OperatorDatabase
from gpuledger.ops.database.records import Environment
from gpuledger.ops.measure.measure import Task
from gpuledger.ops.measure.measured_device import Device
from gpuledger.ops.workloads.workload import Use, Workload


def tasks_of(uses: Iterable[Use], cache_bytes: int) -> list[Task]:
    """Return each distinct operator in each mode that its reuse distance requires, most calls first."""
    counts: dict[Task, int] = {}
    for use in uses:
        for mode in mode_weights(use.reuse_bytes, cache_bytes):
            task = Task(use.key, mode)
            counts[task] = counts.get(task, 0) + use.count
    return sorted(counts, key=lambda task: (-counts[task], task.key.digest, task.mode))


def missing_tasks(tasks: Sequence[Task], database: OperatorDatabase, place: Device, *, need_energy: bool) -> list[Task]:
    """Return the tasks without a record for this device and software."""
    return _missing(tasks, database, place.environment, need_energy=need_energy)


def lacking_for(
    uses: Iterable[Use], database: OperatorDatabase, environment: Environment, *, need_energy: bool
) -> list[Task]:
    """Return the missing tasks of operators for an environment, with the cache size from its flags."""
    tasks = tasks_of(uses, int(environment.flags.get("cache_bytes") or 0))
    return _missing(tasks, database, environment, need_energy=need_energy)


def _missing(
    tasks: Sequence[Task], database: OperatorDatabase, environment: Environment, *, need_energy: bool
) -> list[Task]:
    lacking: set[tuple[str, Mode]] = set()
    for mode in Mode:
        digests = [task.key.digest for task in tasks if task.mode == mode]
        found = database.missing(digests, environment, need_energy, mode.value)
        lacking.update((digest, mode) for digest in found)
    return [task for task in tasks if (task.key.digest, task.mode) in lacking]


def needs_energy(workload: Workload, times_ns: dict[str, float], share_frac: float) -> set[str]:
    """Return the digests of the longest operators that make up ``share_frac`` of a workload's time.

    Args:
        workload: The workload.
        times_ns: Digest -> known time of one call, in ns.
        share_frac: Share of the time for which energy is measured.
    """
    spent = {use.key.digest: use.count * times_ns.get(use.key.digest, 0.0) for use in workload.uses}
    total_ns, held_ns = sum(spent.values()), 0.0
    chosen: set[str] = set()
    for digest in sorted(spent, key=lambda digest: -spent[digest]):
        if held_ns >= share_frac * total_ns:
            break
        chosen.add(digest)
        held_ns += spent[digest]
    return chosen
