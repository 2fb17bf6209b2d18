"""Spreads measurements over workers, one at a time on each device; the driver alone writes into the book."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpuledger.errors import GpuLedgerError
from gpuledger.operators.book import Book
from gpuledger.operators.measure import Progress, Task, Tell, shuffled
from gpuledger.operators.records import Environment, Record

DEATHS = 2
"""A worker that dies may have been killed; when a second one dies of the same operator, that is why."""


class WorkerDiedError(GpuLedgerError):
    """A worker ended before it gave its record."""


@dataclass(frozen=True)
class Answer:
    """What came back: the record, or None where the worker died."""

    worker: int
    task: Task
    record: Record | None


class Crew(Protocol):
    """Workers, each with one device. A worker that died is started again by the crew."""

    @property
    def environments(self) -> Sequence[Environment]:
        """Return each worker's environment."""

    def give(self, worker: int, task: Task) -> None:
        """Let a worker that has nothing to do measure an operator."""

    def wait(self) -> Answer:
        """Return the next answer, once there is one."""


@dataclass(frozen=True)
class Campaigned:
    """What a campaign did. ``deaths`` counts workers that died and came back."""

    measured: int
    failed: int
    deaths: int


@dataclass
class _Queue:
    """What is left for workers of one environment."""

    tasks: deque[Task]
    deaths: dict[Task, int] = field(default_factory=dict)


def run_campaign(
    crew: Crew,
    book: Book,
    tasks_for: Callable[[Environment], Sequence[Task]],
    *,
    seed: int = 0,
    tell: Tell | None = None,
    clock_ns: Callable[[], int],
) -> Campaigned:
    """Return what the workers measured; every record is in the book as soon as it comes.

    Args:
        crew: The workers.
        book: Where records go; only this process writes.
        tasks_for: What the book lacks for an environment.
        seed: Of the random order.
        tell: Called after each record.
        clock_ns: The time.
    """
    queues: dict[str, _Queue] = {}
    for environment in crew.environments:
        if environment.digest not in queues:
            book.put_environment(environment)
            tasks = shuffled(tasks_for(environment), seed)
            book.put_keys(task.key for task in tasks)
            queues[environment.digest] = _Queue(deque(tasks))
    return _Driver(crew, book, queues, tell, clock_ns).run()


@dataclass
class _Driver:
    crew: Crew
    book: Book
    queues: Mapping[str, _Queue]
    tell: Tell | None
    clock_ns: Callable[[], int]
    measured: int = 0
    failed: int = 0
    deaths: int = 0

    def run(self) -> Campaigned:
        """Keep every worker busy with one operator until none is left."""
        started_ns, total = self.clock_ns(), sum(len(queue.tasks) for queue in self.queues.values())
        busy = sum(self._give(worker) for worker in range(len(self.crew.environments)))
        while busy:
            answer = self.crew.wait()
            busy -= 1
            self._take(answer)
            busy += self._give(answer.worker)
            done = self.measured + self.failed
            if self.tell is not None and done:
                left_ns = (self.clock_ns() - started_ns) / done * (total - done)
                self.tell(Progress(done, total, self.failed, left_ns, answer.task.key.name))
        return Campaigned(self.measured, self.failed, self.deaths)

    def _queue(self, worker: int) -> _Queue:
        return self.queues[self.crew.environments[worker].digest]

    def _give(self, worker: int) -> bool:
        """Give a worker its next operator; return whether there was one."""
        tasks = self._queue(worker).tasks
        if not tasks:
            return False
        self.crew.give(worker, tasks.popleft())
        return True

    def _take(self, answer: Answer) -> None:
        """Write a record; put the operator of a worker that died back, or give it up as the cause."""
        queue = self._queue(answer.worker)
        record = answer.record
        if record is None:
            self.deaths += 1
            queue.deaths[answer.task] = queue.deaths.get(answer.task, 0) + 1
            if queue.deaths[answer.task] < DEATHS:
                queue.tasks.appendleft(answer.task)
                return
            record = self._given_up(answer)
        self.book.put_records([record])
        self.failed += record.status == "failed"
        self.measured += record.status == "ok"

    def _given_up(self, answer: Answer) -> Record:
        return Record(
            answer.task.key.digest,
            self.crew.environments[answer.worker].digest,
            {"mode": answer.task.mode.value, "inputs": "normal"},
            status="failed",
            reason=f"{DEATHS} workers died of it",
            measured_ns=self.clock_ns(),
        )
