"""Campaigns: one operator at a time on each device, workers that die and come back, one writer."""

import os
import signal
import sys
import time
from collections import deque

import pytest
import torch
from operator_keys import key_for

from gpuledger.operators.book import open_book
from gpuledger.operators.campaign import Answer, run_campaign
from gpuledger.operators.method import Method
from gpuledger.operators.plan import missing_tasks, tasks_of_keys
from gpuledger.operators.records import Environment, Record

CARD = Environment("card", "1", "2", "3")
OTHER = Environment("other card", "1", "2", "3")


def keys_of(count):
    return [key_for(torch.ops.aten.relu.default, torch.ones(size)) for size in range(1, count + 1)]


class ScriptedCrew:
    """Workers that answer in turn; ``deadly`` tells which operators a worker dies of, and how often."""

    def __init__(self, environments, deadly=None):
        self.environments = environments
        self.deadly = dict(deadly or {})
        self.under_way = deque()
        self.given = []

    def give(self, worker, task):
        assert all(other != worker for other, _ in self.under_way), "one measurement at a time on each device"
        self.under_way.append((worker, task))
        self.given.append((worker, task))

    def wait(self):
        worker, task = self.under_way.popleft()
        if self.deadly.get(task.key, 0):
            self.deadly[task.key] -= 1
            return Answer(worker, task, None)
        record = Record(
            task.key.digest, self.environments[worker].digest, {"mode": task.mode.value}, 1.0, 1.0, 1.0,
            measured_ns=len(self.given),
        )  # fmt: skip
        return Answer(worker, task, record)


@pytest.fixture
def book(tmp_path):
    made = open_book(tmp_path / "operators.book")
    yield made
    made.close()


def run(crew, book, keys, **how):
    tasks = tasks_of_keys(keys)

    def lacking(environment):
        held = {record.key_digest for record in book.records(environment)}
        return [task for task in tasks if task.key.digest not in held]

    return run_campaign(crew, book, lacking, clock_ns=time.time_ns, **how)


def test_every_operator_is_measured_once_by_any_number_of_workers(book):
    crew = ScriptedCrew([CARD, CARD, CARD])
    done = run(crew, book, keys_of(10))
    assert (done.measured, done.failed, done.deaths) == (10, 0, 0)
    assert len(book.records()) == len({record.key_digest for record in book.records()}) == 10
    assert {worker for worker, _ in crew.given} == {0, 1, 2}
    assert run(ScriptedCrew([CARD]), book, keys_of(10)).measured == 0


def test_each_kind_of_card_measures_all_of_it(book):
    done = run(ScriptedCrew([CARD, OTHER]), book, keys_of(4))
    assert done.measured == 8
    assert len(book.records(CARD)) == len(book.records(OTHER)) == 4


def test_an_operator_whose_worker_was_killed_is_measured_by_the_next(book):
    keys = keys_of(5)
    done = run(ScriptedCrew([CARD, CARD], {keys[2]: 1}), book, keys)
    assert (done.measured, done.failed, done.deaths) == (5, 0, 1)
    assert len(book.records()) == 5


def test_an_operator_that_kills_its_workers_is_given_up_and_the_rest_goes_on(book):
    keys = keys_of(5)
    done = run(ScriptedCrew([CARD, CARD], {keys[2]: 9}), book, keys)
    assert (done.measured, done.failed, done.deaths) == (4, 1, 2)
    (failed,) = (record for record in book.records() if record.status == "failed")
    assert (failed.key_digest, failed.reason) == (keys[2].digest, "2 workers died of it")


def test_progress_is_told_after_each_record(book):
    told = []
    run(ScriptedCrew([CARD]), book, keys_of(3), tell=told.append)
    assert [(one.done, one.total) for one in told] == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.skipif(sys.platform != "linux", reason="Ray's processes are killed by their number")
def test_rays_workers_measure_and_come_back_when_one_is_killed(book, tmp_path):
    pytest.importorskip("ray")
    from gpuledger.operators.ray_crew import RayCrew, connected

    method = Method(target_frac=0.9, warm_up_ns=10_000, block_ns=10_000, least_blocks=2, most_blocks=3, energy=False)
    tasks = tasks_of_keys(keys_of(6))
    with connected("local") as ray:
        crew = RayCrew(ray, "cpu", method)
        victim = ray.get(crew.actors[0].process.remote())
        killed = []

        def kill_one(progress):
            if not killed:
                killed.append(victim)
                os.kill(victim, signal.SIGKILL)

        done = run_campaign(crew, book, lambda _: tasks, tell=kill_one, clock_ns=time.time_ns)
    assert killed == [victim]
    assert (done.measured, done.failed) == (6, 0)
    assert missing_tasks(tasks, book, _Place(crew.environments[0]), need_energy=False) == []
    assert len(book.records()) == 6


class _Place:
    def __init__(self, environment):
        self.environment = environment


def test_a_ray_that_is_not_there_is_named():
    from gpuledger.errors import UsageError
    from gpuledger.operators.ray_crew import connected

    if __import__("importlib").util.find_spec("ray") is None:
        with pytest.raises(UsageError, match="Ray is not installed"), connected("local"):
            pass
