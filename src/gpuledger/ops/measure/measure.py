"""Measure missing operators in random order. Each record is committed at once, so that a killed run can be resumed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.method import REFERENCE_EVERY, Method, Mode
from gpuledger.ops.database.operator_database import OperatorDatabase
from gpuledger.ops.database.records import Record
from gpuledger.ops.database.statistics import Drift, drifted_sections, find_drift
from gpuledger.ops.measure.blocks import Clock
from gpuledger.ops.measure.measured_device import Device
from gpuledger.ops.measure.measurement_session import MeasurementSession
from gpuledger.ops.measure.one import CardLostError

__all__ = ["CardLostError", "Outcome", "Progress", "Task", "measure", "shuffled"]


@dataclass(frozen=True)
class Task:
    """One operator to be measured in one mode."""

    key: OperatorKey
    mode: Mode


@dataclass(frozen=True)
class Progress:
    """Progress of a measurement. ``left_ns`` is the expected remaining time, None before the first operator is done."""

    done: int
    total: int
    failed: int
    left_ns: float | None
    operator: str


@dataclass(frozen=True)
class Outcome:
    """Result of a measurement: operators measured, failed, or left because of the time limit, and the drift."""

    measured: int
    failed: int
    left: int
    drift: Drift
    repeated: int = 0


OnProgress = Callable[[Progress], None]


def measure(
    tasks: Sequence[Task],
    database: OperatorDatabase,
    place: Device,
    method: Method,
    *,
    budget_ns: int | None = None,
    on_progress: OnProgress | None = None,
    clock_ns: Clock = time.time_ns,
) -> Outcome:
    """Return the result of measuring ``tasks``. Each record is stored at once.

    Args:
        tasks: The missing operators; see :mod:`gpuledger.ops.measure.plan`.
        database: The database for the records.
        place: The device.
        method: How to measure.
        budget_ns: Time limit in ns, after which no operator is started.
        on_progress: Called before each operator.
        clock_ns: Returns Unix time in ns.

    Raises:
        CardLostError: an operator broke the connection to the GPU; its failure is in the database.
        NoCounterError: energy was requested, and the GPU's counter does not change.
    """
    database.put_environment(place.environment)
    database.put_keys(task.key for task in tasks)
    order = shuffled(tasks, method.seed)
    run = _Run(database, place, method, clock_ns)
    elsewhere = 0
    for number, task in enumerate(order):
        spent_ns = clock_ns() - run.started_ns
        left_ns = spent_ns / number * (len(order) - number) if number else None
        if on_progress is not None:
            on_progress(Progress(number, len(order), run.failed, left_ns, task.key.name))
        if budget_ns is not None and spent_ns >= budget_ns:
            break
        if database.missing([task.key.digest], place.environment, method.energy, task.mode.value):
            run.take(task)
        else:  # another process with the same database has measured it already
            elsewhere += 1
    return run.outcome(len(order) - elsewhere, budget_ns)


def shuffled(tasks: Iterable[Task], seed: int) -> list[Task]:
    """Return the tasks in random order, so that drift does not affect one kind of operator only."""
    order = sorted(tasks, key=lambda task: (task.key.digest, task.mode))
    random.Random(seed).shuffle(order)  # noqa: S311  # an order, no secret
    return order


@dataclass
class _Run:
    """State of one measurement."""

    database: OperatorDatabase
    place: Device
    method: Method
    clock_ns: Clock
    started_ns: int = 0
    failed: int = 0
    done: list[tuple[Task, bool]] = field(default_factory=list)
    """Each operator, and whether it was measured; False if it failed."""

    def __post_init__(self) -> None:
        self.started_ns = self.clock_ns()
        self.session = MeasurementSession(self.place, self.method, self.clock_ns)

    def take(self, task: Task) -> None:
        """Measure one operator into the database."""
        good = self._write(task, self.session.measure).status == "ok"
        self.failed += not good
        self.done.append((task, good))

    def _write(self, task: Task, measure: Callable[..., Record]) -> Record:
        try:
            record = measure(task.key, task.mode, energy=self.method.energy)
        except CardLostError as error:
            self.database.put_records([self._lost(task, error)])
            raise
        self.database.put_records([record])
        return record

    def _lost(self, task: Task, error: CardLostError) -> Record:
        return Record(
            task.key.digest,
            self.place.environment.digest,
            {"mode": task.mode.value, "inputs": "normal"},
            status="failed",
            reason=error.message,
            measured_ns=self.clock_ns(),
        )

    def outcome(self, asked: int, budget_ns: int | None) -> Outcome:
        """Return the result, after a last reference, and after measuring operators again if the reference drifted.

        Beyond the time limit, operators are not measured again; the result has the drift.
        """
        done = list(self.done)
        repeated = 0
        if done:
            self.session.take_reference()
            for section in drifted_sections(self.session.references):
                for task, good in done[section * REFERENCE_EVERY : (section + 1) * REFERENCE_EVERY]:
                    if not good:
                        continue
                    if budget_ns is not None and self.clock_ns() - self.started_ns >= budget_ns:
                        break
                    self._write(task, self.session.measure_again)
                    repeated += 1
        drift = find_drift([median for median, _ in self.session.references])
        return Outcome(len(done) - self.failed, self.failed, asked - len(done), drift, repeated)
