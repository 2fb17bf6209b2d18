"""Distribute measurements over workers, one at a time per device. Only this process writes to the database."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Protocol

from gpuledger.ops.database.method import Method
from gpuledger.ops.database.operator_database import OperatorDatabase
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.measure.fill import energy_tasks_of
from gpuledger.ops.measure.measure import OnProgress, Progress, Task, shuffled
from gpuledger.ops.measure.plan import lacking_for
from gpuledger.ops.workloads.workload import Workload

DEATHS = 2
"""If this many workers end during the same operator, the operator counts as the cause."""


@dataclass(frozen=True)
class WorkerAnswer:
    """A worker's result: the record, or None if the worker ended."""

    worker: int
    task: Task
    record: Record | None


class Crew(Protocol):
    """Workers, each with one device. The crew restarts a worker that ended."""

    @property
    def environments(self) -> Sequence[Environment]:
        """Return each worker's environment."""

    def give(self, worker: int, task: Task, *, energy: bool) -> None:
        """Let an idle worker measure an operator."""

    def wait(self) -> WorkerAnswer:
        """Wait for the next result and return it."""

    def drifted(self) -> Sequence[tuple[int, Task]]:
        """Return the tasks to measure again, by worker, because the device drifted."""


Watch = Callable[[int, Task], AbstractContextManager[object]]
"""Context around the measurement of an operator by a worker."""


@dataclass(frozen=True)
class Campaigned:
    """The result of a campaign. ``deaths`` is the number of workers that ended and were restarted."""

    measured: int
    failed: int
    deaths: int
    repeated: int = 0

    def __add__(self, other: Campaigned) -> Campaigned:
        return Campaigned(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))


@dataclass
class _Queue:
    """Remaining tasks for the workers of one environment."""

    tasks: deque[Task]
    deaths: dict[Task, int] = field(default_factory=dict)


def measure_workloads(
    crew: Crew,
    database: OperatorDatabase,
    workloads: Sequence[Workload],
    method: Method,
    *,
    energy_share_frac: float,
    watch: Watch,
    on_progress: OnProgress | None,
    clock_ns: Callable[[], int],
) -> Campaigned:
    """Return the result of measuring workloads with all workers, in the same order as :mod:`.fill`.

    Args:
        crew: The workers.
        database: The database for the records.
        workloads: The workloads.
        method: ``energy`` selects whether energy is measured, on devices with a counter.
        energy_share_frac: Share of each workload's time for which energy is measured.
        watch: Context around the measurement of an operator by a worker.
        on_progress: Called after each record.
        clock_ns: Returns Unix time in ns.
    """
    uses = [use for workload in workloads for use in workload.uses]

    def times_for(environment: Environment) -> list[Task]:
        return lacking_for(uses, database, environment, need_energy=False)

    def energies_for(environment: Environment) -> list[Task]:
        if environment.flags.get("power_limit_w") is None:
            return []
        return energy_tasks_of(workloads, uses, database, environment, energy_share_frac)

    how: dict[str, Any] = {"seed": method.seed, "watch": watch, "on_progress": on_progress, "clock_ns": clock_ns}
    done = run_campaign(crew, database, times_for, **how)
    return done + run_campaign(crew, database, energies_for, energy=True, **how) if method.energy else done


def run_campaign(
    crew: Crew,
    database: OperatorDatabase,
    tasks_for: Callable[[Environment], Sequence[Task]],
    *,
    energy: bool = False,
    seed: int = 0,
    watch: Watch = lambda _worker, _task: nullcontext(),
    on_progress: OnProgress | None = None,
    clock_ns: Callable[[], int],
) -> Campaigned:
    """Return the result of measuring tasks with all workers. Each record is stored at once.

    Args:
        crew: The workers.
        database: The database for the records.
        tasks_for: Returns the missing tasks of an environment.
        energy: Measure energy, too.
        seed: Random seed of the order.
        watch: Context around the measurement of an operator by a worker.
        on_progress: Called after each record.
        clock_ns: Returns Unix time in ns.
    """
    queues: dict[str, _Queue] = {}
    for environment in crew.environments:
        if environment.digest not in queues:
            database.put_environment(environment)
            tasks = shuffled(tasks_for(environment), seed)
            database.put_keys(task.key for task in tasks)
            queues[environment.digest] = _Queue(deque(tasks))
    return _Driver(crew, database, queues, energy, watch, on_progress, clock_ns).run()


@dataclass
class _Driver:
    crew: Crew
    database: OperatorDatabase
    queues: Mapping[str, _Queue]
    energy: bool
    watch: Watch
    on_progress: OnProgress | None
    clock_ns: Callable[[], int]
    measured: int = 0
    failed: int = 0
    deaths: int = 0
    total: int = 0
    watches: dict[int, ExitStack] = field(default_factory=dict)

    def run(self) -> Campaigned:
        """Measure all tasks, then once more those that were measured while a device drifted."""
        self.total = sum(len(queue.tasks) for queue in self.queues.values())
        self._work()
        first = Campaigned(self.measured, self.failed, self.deaths)
        again = self.crew.drifted() if self.total else ()
        for worker, task in again:
            self._queue(worker).tasks.append(task)
        self.total += len(again)
        self._work()
        return replace(first, deaths=self.deaths, repeated=len(again))

    def _work(self) -> None:
        """Keep every worker busy with one operator until none is left."""
        started_ns, before = self.clock_ns(), self.measured + self.failed
        try:
            busy = sum(self._give(worker) for worker in range(len(self.crew.environments)))
            while busy:
                answer = self.crew.wait()
                self.watches.pop(answer.worker).close()
                busy -= 1
                self._take(answer)
                busy += self._give(answer.worker)
                done = self.measured + self.failed
                if self.on_progress is not None and done > before:
                    left_ns = (self.clock_ns() - started_ns) / (done - before) * (self.total - done)
                    self.on_progress(Progress(done, self.total, self.failed, left_ns, answer.task.key.name))
        finally:
            for open_ in self.watches.values():
                open_.close()

    def _queue(self, worker: int) -> _Queue:
        return self.queues[self.crew.environments[worker].digest]

    def _give(self, worker: int) -> bool:
        """Give a worker its next operator. Return whether there was one."""
        tasks = self._queue(worker).tasks
        if not tasks:
            return False
        task = tasks.popleft()
        open_ = self.watches[worker] = ExitStack()
        open_.enter_context(self.watch(worker, task))
        self.crew.give(worker, task, energy=self.energy)
        return True

    def _take(self, answer: WorkerAnswer) -> None:
        """Store a record. If the worker ended, queue the operator again, or store it as failed."""
        queue = self._queue(answer.worker)
        record = answer.record
        if record is None:
            self.deaths += 1
            queue.deaths[answer.task] = queue.deaths.get(answer.task, 0) + 1
            if queue.deaths[answer.task] < DEATHS:
                queue.tasks.appendleft(answer.task)
                return
            record = self._given_up(answer)
        self.database.put_records([record])
        self.failed += record.status == "failed"
        self.measured += record.status == "ok"

    def _given_up(self, answer: WorkerAnswer) -> Record:
        return Record(
            answer.task.key.digest,
            self.crew.environments[answer.worker].digest,
            {"mode": answer.task.mode.value, "inputs": "normal"},
            status="failed",
            reason=f"it ended {DEATHS} worker processes",
            measured_ns=self.clock_ns(),
        )
