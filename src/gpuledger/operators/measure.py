"""Measures what the book lacks, in random order; each record is committed at once, so that any kill can be resumed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpuledger.operators.blocks import Clock, base_power_w
from gpuledger.operators.book import Book
from gpuledger.operators.key import OperatorKey
from gpuledger.operators.method import BASE_EVERY, REFERENCE_EVERY, Method, Mode
from gpuledger.operators.one import CardLostError, measure_one
from gpuledger.operators.place import Place
from gpuledger.operators.records import Record
from gpuledger.operators.statistics import Drift, drifted_sections, find_drift

__all__ = ["CardLostError", "Outcome", "Progress", "Task", "measure", "shuffled"]

_MATRIX = {"shape": [512, 512], "dtype": "float32", "stride": [512, 1]}
REFERENCE = OperatorKey("aten.mm.default", (_MATRIX, {**_MATRIX}))
"""What is measured again and again, to see whether the device is still the one it was."""


@dataclass(frozen=True)
class Task:
    """One operator to be measured in one mode."""

    key: OperatorKey
    mode: Mode


@dataclass(frozen=True)
class Progress:
    """How far a measurement is. ``left_ns`` is None before the first operator is done."""

    done: int
    total: int
    failed: int
    left_ns: float | None
    operator: str


@dataclass(frozen=True)
class Outcome:
    """What a measurement did: operators measured, failed, left for want of time, and how the reference moved."""

    measured: int
    failed: int
    left: int
    drift: Drift
    repeated: int = 0


Tell = Callable[[Progress], None]


def measure(
    tasks: Sequence[Task],
    book: Book,
    place: Place,
    method: Method,
    *,
    budget_ns: int | None = None,
    tell: Tell | None = None,
    clock_ns: Clock = time.time_ns,
) -> Outcome:
    """Return what was done of ``tasks``; every record is in the book as soon as it is made.

    Args:
        tasks: What the book lacks; see :mod:`gpuledger.operators.plan`.
        book: Where records go.
        place: The device.
        method: How.
        budget_ns: No operator is begun after so long.
        tell: Called before each operator.
        clock_ns: The time.

    Raises:
        CardLostError: an operator broke the connection to the card; its failure is in the book.
        NoCounterError: energy was asked for, and the card's counter does not move.
    """
    book.put_environment(place.environment)
    book.put_keys(task.key for task in tasks)
    order = shuffled(tasks, method.seed)
    run = _Run(book, place, method, clock_ns)
    for number, task in enumerate(order):
        spent_ns = clock_ns() - run.started_ns
        left_ns = spent_ns / number * (len(order) - number) if number else None
        if tell is not None:
            tell(Progress(number, len(order), run.failed, left_ns, task.key.name))
        if budget_ns is not None and spent_ns >= budget_ns:
            break
        run.take(task)
    return run.outcome(len(order), budget_ns)


def shuffled(tasks: Iterable[Task], seed: int) -> list[Task]:
    """Return the tasks in an order that the seed decides: what drifts then drifts across all kinds of operators."""
    order = sorted(tasks, key=lambda task: (task.key.digest, task.mode))
    random.Random(seed).shuffle(order)  # noqa: S311  # an order, no secret
    return order


@dataclass
class _Run:
    """What one measurement keeps from operator to operator."""

    book: Book
    place: Place
    method: Method
    clock_ns: Clock
    started_ns: int = 0
    failed: int = 0
    base_w: float | None = None
    energies: int = 0
    references: list[tuple[float, float]] = field(default_factory=list)
    done: list[Task] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started_ns = self.clock_ns()

    def take(self, task: Task) -> None:
        """Measure one operator into the book, after the reference where its turn is."""
        if len(self.done) % REFERENCE_EVERY == 0:
            self.take_reference()
        self.failed += self._measure(task).status == "failed"
        self.done.append(task)

    def take_reference(self) -> None:
        """Time the reference operator, which goes into no book."""
        method = replace(self.method, energy=False)
        record = measure_one(REFERENCE, Mode.HOT, self.place, method, self.clock_ns)
        if record.time_median_ns and record.time_low_ns is not None and record.time_high_ns is not None:
            self.references.append((record.time_median_ns, (record.time_high_ns - record.time_low_ns) / 2))

    def _measure(self, task: Task) -> Record:
        try:
            record = measure_one(task.key, task.mode, self.place, self.method, self.clock_ns)
        except CardLostError as error:
            self.book.put_records([self._lost(task, error)])
            raise
        if record.energy_median_j is not None:
            record = replace(record, base_w=self._base_w())
        self.book.put_records([record])
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

    def _base_w(self) -> float | None:
        """Return the power of the waiting card: read after the first operator with energy and each tenth."""
        if self.energies % BASE_EVERY == 0 and self.place.sensors is not None:
            self.base_w = base_power_w(self.method, self.place.sensors, self.clock_ns)
        self.energies += 1
        return self.base_w

    def outcome(self, asked: int, budget_ns: int | None) -> Outcome:
        """Return what was done, after a last reference and after measuring again where the reference moved too far.

        What the budget leaves no time for is not measured again; the drift that is returned tells of it.
        """
        done = list(self.done)
        repeated = 0
        if done:
            self.take_reference()
            for section in drifted_sections(self.references):
                for task in done[section * REFERENCE_EVERY : (section + 1) * REFERENCE_EVERY]:
                    if budget_ns is not None and self.clock_ns() - self.started_ns >= budget_ns:
                        break
                    self._measure(task)
                    repeated += 1
        drift = find_drift([median for median, _ in self.references])
        return Outcome(len(done) - self.failed, self.failed, asked - len(done), drift, repeated)
