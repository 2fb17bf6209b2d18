"""A profile of all threads has whole calls, with their modules and scopes, and steps that contain all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from held import is_held
from present import present
from torch import nn

import gpuledger
from gpuledger.analyze.step.times import break_down_time
from gpuledger.collect.adapter import kineto
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.passes import held_threads
from gpuledger.collect.passes.held_threads import HeldThreads
from gpuledger.collect.passes.time_pass import TimePass
from gpuledger.model.journal.journal import EARLIER_CALL, MODULE_RANGE, SCOPE_RANGE
from gpuledger.model.run import Rank

pytestmark = pytest.mark.torch

GUARD = Guard(lambda error: pytest.fail(str(error)))
LATEST_NS = 1 << 62


@pytest.fixture(autouse=True)
def _all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test record all threads, and wait for those that a busy machine keeps from running."""
    monkeypatch.setattr(kineto, "_of_all_threads", [])
    monkeypatch.setattr(ModuleRegistry, "runs_in_other_threads", lambda _registry: True)
    for name, time_s in (("WAIT_S", 20.0), ("OUTERMOST_S", 20.0), ("HOLD_S", 60.0)):
        monkeypatch.setattr(held_threads, name, time_s)


@pytest.fixture
def registry() -> ModuleRegistry:
    return ModuleRegistry()


@pytest.fixture
def time_pass(registry: ModuleRegistry, tmp_path: Path) -> TimePass:
    journal = RankJournal(lambda: tmp_path, [])
    return TimePass(journal, registry, GUARD, lambda: None, HeldThreads(journal, set(), GUARD.absorbs))


class Stops(nn.Module):
    """Stops before its layer until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.is_inside, self.may_go_on = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.is_inside.set()
        self.may_go_on.wait(20)
        result: torch.Tensor = self.layer(x)
        return result


def start_at_a_call(time_pass: TimePass, work: Callable[[], Any]) -> None:
    """Start a profile while a thread with ``work`` is held at its first call of a module, and wait for its end."""
    thread = threading.Thread(target=work)
    with time_pass.starting() as can_start:
        assert can_start
        thread.start()
        while not is_held(thread):
            time.sleep(0.001)
        time_pass.begin()
    thread.join()


def names_of(time_pass: TimePass, wanted: tuple[str, ...]) -> list[str]:
    """End a profile. Return the names of its events that begin with one of the wanted ones, in order of time."""
    found: list[Any] = []
    time_pass.on_events = found.extend
    assert time_pass.end()
    found.sort(key=lambda event: event.start_ns())
    return [event.name() for event in found if event.name().startswith(wanted)]


def test_a_call_at_which_a_thread_was_held_is_in_the_profile(time_pass: TimePass, registry: ModuleRegistry) -> None:
    model = nn.Linear(2, 2)
    number = registry.register(model)
    start_at_a_call(time_pass, lambda: model(torch.ones(2)))
    assert names_of(time_pass, (MODULE_RANGE, "aten::linear")) == [f"{MODULE_RANGE}{number}", "aten::linear"]


def test_a_scope_that_another_thread_has_entered_before_is_in_the_profile(time_pass: TimePass) -> None:
    model = nn.Linear(2, 2)

    def work() -> None:
        with gpuledger.scope("from before"):
            model(torch.ones(2))
            model(torch.ones(2))

    start_at_a_call(time_pass, work)
    names = [name.split(".")[1] for name in names_of(time_pass, (MODULE_RANGE, SCOPE_RANGE))]
    assert names == ["scope", "module", "module", "scope"]


def test_a_backward_pass_is_in_the_scope_that_its_thread_has_entered_before(time_pass: TimePass) -> None:
    x, entered, begun = torch.ones(2, requires_grad=True), threading.Event(), threading.Event()

    def work() -> None:
        with gpuledger.scope("from before"):
            entered.set()
            begun.wait(20)
            x.sum().backward()

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(20)
    with time_pass.starting():
        time_pass.begin()
    begun.set()
    thread.join()
    assert [name.split(".")[1] for name in names_of(time_pass, ("gpuledger.",))] == ["scope", "phase", "scope"]


@pytest.mark.parametrize(("outermost_s", "is_whole"), [(20.0, True), (0.0, False)])
def test_threads_are_held_outside_their_calls_if_these_end_soon(
    outermost_s: float, is_whole: bool, time_pass: TimePass, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_threads, "OUTERMOST_S", outermost_s)
    model, ended = Stops(), []

    def work() -> None:
        for number in range(2):
            model(torch.ones(2))
            ended.append(number)

    thread = threading.Thread(target=work)
    thread.start()
    model.is_inside.wait(20)
    with time_pass.starting() as can_start:
        assert can_start
        model.may_go_on.set()
        while not is_held(thread):
            time.sleep(0.001)
        assert ended == ([0] if is_whole else [])
    thread.join()


class Loop(nn.Module):
    """Calls its layer several times, and computes in between itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.before_each: Callable[[], None] = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            self.before_each()
            x = self.layer(x).sin()
        return x


def test_a_thread_marks_the_call_that_it_was_inside_when_the_profile_began(
    time_pass: TimePass, registry: ModuleRegistry
) -> None:
    loop, is_inside, begun = Loop(), threading.Event(), threading.Event()
    model = nn.Sequential(loop)
    numbers = [registry.register(one) for one in (model, loop, loop.layer)]

    def work() -> None:
        model(torch.ones(4))
        model(torch.ones(4))

    def wait() -> None:
        is_inside.set()
        begun.wait(20)

    loop.before_each = wait
    thread = threading.Thread(target=work)
    thread.start()
    is_inside.wait(20)
    with time_pass.starting():
        time_pass.begin()
    begun.set()
    thread.join()
    whole, body, layer = (f"{MODULE_RANGE}{number}" for number in numbers)
    earlier = f"{EARLIER_CALL}{numbers[1]}"
    names = names_of(time_pass, (MODULE_RANGE, EARLIER_CALL, "aten::sin"))
    first = [earlier, layer, "aten::sin"] * 3
    assert names == [*first, whole, body, *[layer, "aten::sin"] * 3]


def test_a_call_that_contains_the_steps_has_the_times_of_its_own_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModuleRegistry, "runs_in_other_threads", lambda _registry: False)

    class Training(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            for _ in range(8):
                loss = self.model(x).exp().sum()
                loss.backward()
                optimizer.step()
            return x

    training = Training()
    times = present(break_down_time(recorded(tmp_path / "run", lambda: training(torch.ones(4)))))
    owners = {one.module for one in times.accounts if one.phase == "forward"}
    assert {"Training", "model"} <= owners


def test_a_whole_call_in_the_measured_steps_is_awaited(time_pass: TimePass, registry: ModuleRegistry) -> None:
    """A thread can have been held in the middle of its call, and a call can end after the step."""
    assert not time_pass.awaits_call(0, LATEST_NS)
    with time_pass.starting():
        time_pass.begin()
    try:
        assert time_pass.has_all_threads
        assert not time_pass.awaits_call(-1, LATEST_NS)
        assert time_pass.awaits_call(0, LATEST_NS)
        assert not time_pass.awaits_call(threading.active_count(), LATEST_NS)
        model = nn.Sequential(nn.Linear(2, 2))
        registry.register(model)
        model[0](torch.ones(2))
        assert time_pass.awaits_call(0, LATEST_NS)
        before_ns = time.time_ns()
        model(torch.ones(2))
        after_ns = time.time_ns()
        assert not time_pass.awaits_call(0, after_ns)
        assert time_pass.awaits_call(0, before_ns)
        time_pass.measure_from(after_ns)
        assert time_pass.awaits_call(0, LATEST_NS)
    finally:
        assert time_pass.end(keep=False)


def test_a_call_of_an_earlier_profile_is_none_of_the_next(time_pass: TimePass, registry: ModuleRegistry) -> None:
    model = nn.Linear(2, 2)
    registry.register(model)
    with time_pass.starting():
        time_pass.begin()
    model(torch.ones(2))
    assert time_pass.end(keep=False)
    kineto._of_all_threads.clear()
    with time_pass.starting():
        time_pass.begin()
    is_awaited = time_pass.awaits_call(0, LATEST_NS)
    assert time_pass.end(keep=False)
    assert is_awaited


def recorded(directory: Path, program: Callable[[], None]) -> Rank:
    """Record memory and times of a program in this process."""
    with gpuledger.record(out=directory, passes="memory,time", devices="cpu") as recording:
        program()
    return recording.run().rank()


def steps_of(rank: Rank, first: int, last: int) -> list[tuple[int, int]]:
    """Return the times of steps."""
    rows = rank.table("steps", ("step", "start_ns", "end_ns")).to_pylist()
    return [(row["start_ns"], row["end_ns"]) for row in rows if first <= row["step"] <= last]


def test_steps_of_all_threads_have_no_gaps(tmp_path: Path) -> None:
    """What another thread computes between two of them would be in no step."""
    model = nn.Linear(4, 4).eval()

    def evaluate() -> None:
        with torch.no_grad():
            for _ in range(10):
                model(torch.ones(2, 4))

    rank = recorded(tmp_path / "run", evaluate)
    assert (rank.manifest.times_of_all_threads, rank.manifest.time_steps) == (True, (4, 6))
    times = steps_of(rank, 4, 6)
    assert [ends for _, ends in times[:-1]] == [begins for begins, _ in times[1:]]


def test_steps_whose_calls_were_before_the_profile_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread has called the model, and waits to end its step while another one starts the profile."""
    model = nn.Sequential(nn.Linear(4, 4)).eval()
    starting, measure_from = TimePass.starting, TimePass.measure_from
    others, froms_ns = list[threading.Thread](), list[int]()

    def starts(one: TimePass) -> Any:
        others.append(threading.Thread(target=evaluate, args=(1,)))
        others[0].start()
        while not present(one._others).waiting_count:
            time.sleep(0.001)
        return starting(one)

    def evaluate(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                model(torch.ones(2, 4))
                if others and threading.current_thread() is not others[0]:
                    others[0].join()

    def measures_from(one: TimePass, from_ns: int) -> None:
        froms_ns.append(from_ns)
        measure_from(one, from_ns)

    monkeypatch.setattr(TimePass, "starting", starts)
    monkeypatch.setattr(TimePass, "measure_from", measures_from)
    rank = recorded(tmp_path / "run", lambda: evaluate(10))
    assert len(others) == 1
    assert (rank.manifest.times_of_all_threads, rank.manifest.time_steps) == (True, (4, 7))
    assert [begins for begins, _ in steps_of(rank, 4, 5)] == froms_ns
    times = present(break_down_time(rank))
    assert times.steps == 3
    assert {(one.module, one.phase): one.spans for one in times.accounts}["0", "evaluation"] == 1.0


def test_steps_after_the_wanted_ones_count_if_the_program_ends_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that was awaited can be in one of these."""
    model = nn.Linear(4, 4).eval()
    monkeypatch.setattr(TimePass, "awaits_call", lambda *_: True)

    def evaluate() -> None:
        with torch.no_grad():
            for _ in range(8):
                model(torch.ones(2, 4))

    rank = recorded(tmp_path / "run", evaluate)
    assert rank.manifest.time_steps == (4, 8)
    assert present(break_down_time(rank)).steps == 5
