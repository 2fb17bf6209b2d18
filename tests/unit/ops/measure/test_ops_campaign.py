"""Campaigns: one operator at a time on each device, workers that die and come back, one writer."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from operator_keys import key_for, tasks_of_keys

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.method import Method
from gpuledger.ops.database.operator_database import OperatorDatabase, open_database
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.measure.campaign import Campaigned, WorkerAnswer, measure_workloads, run_campaign
from gpuledger.ops.measure.measure import Progress, Task
from gpuledger.ops.workloads.workload import Use, Workload

CARD = Environment("card", "1", "2", "3")
OTHER = Environment("other card", "1", "2", "3")


def keys_of(count: int) -> list[OperatorKey]:
    return [key_for(torch.ops.aten.relu.default, torch.ones(size)) for size in range(1, count + 1)]


class ScriptedCrew:
    """Workers that answer in turn.

    ``deadly`` tells which operators a worker dies of, and how often, ``drifting`` what is to be measured again.
    """

    def __init__(
        self,
        environments: Sequence[Environment],
        deadly: Mapping[OperatorKey, int] | None = None,
        drifting: Iterable[OperatorKey] = (),
    ) -> None:
        self.environments = environments
        self.drifting = list(drifting)
        self.deadly = dict(deadly or {})
        self.under_way: deque[tuple[int, Task]] = deque()
        self.given: list[tuple[int, Task]] = []

    def give(self, worker: int, task: Task, *, energy: bool) -> None:
        assert all(other != worker for other, _ in self.under_way), "one measurement at a time on each device"
        self.under_way.append((worker, task))
        self.given.append((worker, task))
        self.energy = energy

    def wait(self) -> WorkerAnswer:
        worker, task = self.under_way.popleft()
        if self.deadly.get(task.key, 0):
            self.deadly[task.key] -= 1
            return WorkerAnswer(worker, task, None)
        energy_j = 0.1 if self.energy else None
        record = Record(
            task.key.digest, self.environments[worker].digest, {"mode": task.mode.value}, 1.0, 1.0, 1.0,
            energy_j, energy_j, energy_j, measured_ns=len(self.given),
        )  # fmt: skip
        return WorkerAnswer(worker, task, record)

    def given_to(self, worker: int) -> int:
        return sum(who == worker for who, _ in self.given)

    def drifted(self) -> list[tuple[int, Task]]:
        found = [(worker, task) for worker, task in self.given if task.key in self.drifting]
        self.drifting = []
        return found


@pytest.fixture
def database(tmp_path: Path) -> Iterator[OperatorDatabase]:
    made = open_database(tmp_path / "operators.db")
    yield made
    made.close()


def run(crew: ScriptedCrew, database: OperatorDatabase, keys: Sequence[OperatorKey], **how: Any) -> Campaigned:
    tasks = tasks_of_keys(keys)

    def lacking(environment: Environment) -> list[Task]:
        held = {record.key_digest for record in database.records(environment)}
        return [task for task in tasks if task.key.digest not in held]

    return run_campaign(crew, database, lacking, clock_ns=time.time_ns, **how)


def test_every_operator_is_measured_once_by_any_number_of_workers(database: OperatorDatabase) -> None:
    crew = ScriptedCrew([CARD, CARD, CARD])
    done = run(crew, database, keys_of(10))
    assert (done.measured, done.failed, done.deaths) == (10, 0, 0)
    assert len(database.records()) == len({record.key_digest for record in database.records()}) == 10
    assert {worker for worker, _ in crew.given} == {0, 1, 2}
    assert run(ScriptedCrew([CARD]), database, keys_of(10)).measured == 0


def test_each_kind_of_card_measures_all_of_it(database: OperatorDatabase) -> None:
    done = run(ScriptedCrew([CARD, OTHER]), database, keys_of(4))
    assert done.measured == 8
    assert len(database.records(CARD)) == len(database.records(OTHER)) == 4


def test_an_operator_whose_worker_was_killed_is_measured_by_the_next(database: OperatorDatabase) -> None:
    keys = keys_of(5)
    done = run(ScriptedCrew([CARD, CARD], {keys[2]: 1}), database, keys)
    assert (done.measured, done.failed, done.deaths) == (5, 0, 1)
    assert len(database.records()) == 5


def test_an_operator_that_kills_its_workers_is_given_up_and_the_rest_goes_on(database: OperatorDatabase) -> None:
    keys = keys_of(5)
    done = run(ScriptedCrew([CARD, CARD], {keys[2]: 9}), database, keys)
    assert (done.measured, done.failed, done.deaths) == (4, 1, 2)
    (failed,) = (record for record in database.records() if record.status == "failed")
    assert (failed.key_digest, failed.reason) == (keys[2].digest, "it ended 2 worker processes")


def test_progress_is_told_after_each_record(database: OperatorDatabase) -> None:
    told: list[Progress] = []
    run(ScriptedCrew([CARD]), database, keys_of(3), on_progress=told.append)
    assert [(one.done, one.total) for one in told] == [(1, 3), (2, 3), (3, 3)]


def test_what_was_measured_while_a_device_drifted_is_measured_again_once(database: OperatorDatabase) -> None:
    keys = keys_of(5)
    crew = ScriptedCrew([CARD, CARD], drifting=keys[:2])
    done = run(crew, database, keys)
    assert (done.measured, done.failed, done.repeated) == (5, 0, 2)
    assert len(database.records()) == 7
    assert [task.key for _, task in crew.given[5:]] in (keys[:2], keys[1::-1])


def test_a_window_is_open_for_as_long_as_a_worker_has_an_operator(database: OperatorDatabase) -> None:
    events: list[tuple[str, int, Task]] = []

    @contextmanager
    def window(worker: int, task: Task) -> Iterator[None]:
        events.append(("begin", worker, task))
        yield
        events.append(("end", worker, task))

    crew = ScriptedCrew([CARD, CARD], {keys_of(3)[1]: 1})
    run(crew, database, keys_of(3), watch=window)
    begun = [(worker, task) for what, worker, task in events if what == "begin"]
    assert begun == crew.given  # the one whose worker died as well
    assert sorted(map(str, begun)) == sorted(str(event[1:]) for event in events if event[0] == "end")
    for worker in (0, 1):
        assert [what for what, who, _ in events if who == worker] == ["begin", "end"] * crew.given_to(worker)


def test_workers_measure_all_times_and_then_the_energy_of_those_that_hold_most(database: OperatorDatabase) -> None:
    keys = keys_of(4)
    workload = Workload("w", "inference", tuple(Use(key, 10**place) for place, key in enumerate(keys)))
    cards = [
        replace(one, flags={"cache_bytes": 1, "power_limit_w": limit}) for one, limit in ((CARD, 700), (OTHER, None))
    ]
    how: dict[str, Any] = {
        "energy_share_frac": 0.9,
        "watch": lambda *_: nullcontext(),
        "on_progress": None,
        "clock_ns": time.time_ns,
    }
    crew = ScriptedCrew(cards)
    done = measure_workloads(crew, database, [workload], Method(), **how)
    assert (done.measured, done.failed) == (9, 0)
    with_energy = [record.key_digest for record in database.records(cards[0]) if record.energy_median_j is not None]
    assert with_energy == [keys[3].digest]  # 1,000 of 1,111 calls of like time
    assert not [record for record in database.records(cards[1]) if record.energy_median_j is not None]
    again = measure_workloads(ScriptedCrew(cards), database, [workload], Method(), **how)
    assert again.measured == 0
    assert measure_workloads(ScriptedCrew([CARD]), database, [workload], Method(energy=False), **how).measured == 4
