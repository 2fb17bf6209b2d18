"""Captures of CUDA graphs are traced, and replays of a captured step are steps: with graphs that do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from graphs_that_do_nothing import FUNCTIONS, capture  # noqa: E402

from gpuledger.collect.adapter.guard import Guard  # noqa: E402
from gpuledger.collect.adapter.user_profiler import UserProfiler  # noqa: E402
from gpuledger.collect.attribution.module_registry import ModuleRegistry  # noqa: E402
from gpuledger.collect.passes import graph_captures  # noqa: E402
from gpuledger.collect.passes.graph_captures import GraphCaptures  # noqa: E402
from gpuledger.collect.passes.time_pass import TimePass  # noqa: E402
from gpuledger.collect.steps.failed_captures import MORE, MOST, FailedCaptures  # noqa: E402
from gpuledger.collect.steps.step_counter import StepCounter  # noqa: E402
from gpuledger.model.journal.journal import GRAPH_RANGE, ActivityKind, Part  # noqa: E402
from gpuledger.model.journal.reading import Journal, journal_of  # noqa: E402

pytestmark = pytest.mark.torch


class Notes:
    """A journal in memory."""

    def __init__(self) -> None:
        self.part = Part()

    def fact(self, **facts: Any) -> None:
        self.part.facts |= facts

    def note(self, sentence: str) -> None:
        self.part.notes.append(sentence)

    def pause(self, *_: Any) -> None:
        pass

    def read(self) -> Journal:
        return journal_of([self.part])


@pytest.fixture
def guard() -> Guard:
    def fail(error: BaseException) -> None:
        raise error

    return Guard(fail)


class Traced:
    """What traces captures, with its journal and its timing measurement."""

    def __init__(self, guard: Guard, give_up: Callable[[], None] | None = None) -> None:
        self.journal = Notes()
        registry = ModuleRegistry()
        journal: Any = self.journal
        self.trace, self.steps = (TimePass(journal, registry, guard, lambda: None) for _ in range(2))
        self.watch = UserProfiler(lambda: None, guard.absorbs)
        self.captures = GraphCaptures(self.trace, self.steps, journal, self.watch, guard, give_up)


@pytest.fixture
def traced(guard: Guard, new_graph: object) -> Iterator[Traced]:
    found = Traced(guard)
    codes = [getattr(torch.cuda.CUDAGraph, name).__code__ for name in FUNCTIONS]
    found.captures.install()
    found.watch.install()
    yield found
    found.captures.remove()
    found.watch.remove()
    assert [getattr(torch.cuda.CUDAGraph, name).__code__ for name in FUNCTIONS] == codes
    assert not torch.autograd._profiler_enabled()


def add() -> None:
    torch.ones(4) + 1


def captured_operators(journal: Journal, number: int) -> set[str]:
    table, names = journal.tables["captures"], journal.facts["captured_names"]
    own = (table["capture"] == number) & (table["kind"] == ActivityKind.HOST)
    return {names[name_id] for name_id in table["name_id"][own].tolist()}


def test_each_capture_has_its_operators(traced: Traced, new_graph: Callable[[], Any]) -> None:
    capture(new_graph(), add)
    capture(new_graph(), lambda: torch.ones(4).exp())
    torch.ones(4).log()
    journal = traced.journal.read()
    assert "aten::add" in captured_operators(journal, 0)
    assert "aten::exp" in captured_operators(journal, 1)
    assert not captured_operators(journal, 1) & {"aten::add", "aten::log"}
    assert not traced.trace.is_open


def test_replays_in_a_profiled_step_have_the_number_of_their_capture(
    traced: Traced, new_graph: Callable[[], Any]
) -> None:
    graphs = [new_graph() for _ in range(3)]
    for graph in graphs[:2]:
        capture(graph, add)
    graphs[1].replay()
    traced.steps.begin()
    for graph in (graphs[1], graphs[2], graphs[0], graphs[1]):
        graph.replay()
    traced.steps.end()
    journal = traced.journal.read()
    names = [journal.facts["activity_names"][number] for number in journal.tables["activities"]["name_id"].tolist()]
    assert [name for name in names if name.startswith(GRAPH_RANGE)] == [f"{GRAPH_RANGE}{n}" for n in (1, 0, 1)]


def test_a_capture_in_a_profiled_step_is_part_of_its_trace(traced: Traced, new_graph: Callable[[], Any]) -> None:
    graph = new_graph()
    traced.steps.begin()
    torch.ones(4).log()
    capture(graph, add)
    torch.ones(4).exp()
    graph.replay()
    traced.steps.end()
    journal = traced.journal.read()
    assert captured_operators(journal, 0) >= {"aten::add", "aten::ones"}
    assert not captured_operators(journal, 0) & {"aten::log", "aten::exp"}
    assert f"{GRAPH_RANGE}0" in journal.facts["activity_names"]


def test_by_default_a_capture_ends_the_profiled_steps_before_it_begins(
    guard: Guard, new_graph: Callable[[], Any]
) -> None:
    """Programs capture a graph after three steps, as PyTorch's documentation does: in the first profiled one."""
    was_open: list[bool] = []
    found = Traced(guard, lambda: None if found.steps.end(keep=False) else pytest.fail("cannot be ended"))
    found.captures.install()
    try:
        found.steps.begin()
        capture(new_graph(), lambda: was_open.append(found.steps.is_open))
        found.captures.say_untraced()
    finally:
        found.captures.remove()
    assert was_open == [False]
    assert not found.journal.read().tables["captures"]["kind"].size
    assert found.journal.part.notes == []


def test_a_capture_that_fails_is_dropped(
    traced: Traced, new_graph: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    graph = new_graph()
    base = torch.cuda.CUDAGraph.__mro__[1]
    for name in ("capture_begin", "capture_end"):
        with monkeypatch.context() as patch:
            patch.setattr(base, name, fails)
            with pytest.raises(RuntimeError, match="not permitted"):
                capture(graph, add)
        assert not torch.autograd._profiler_enabled()
    assert not traced.journal.read().tables["captures"]["kind"].size
    capture(graph, add)
    assert "aten::add" in captured_operators(traced.journal.read(), 0)


def test_the_programs_own_profiler_has_priority(traced: Traced, new_graph: Callable[[], Any]) -> None:
    with torch.autograd.profiler.profile(use_kineto=True) as own:
        capture(new_graph(), add)
    assert any(event.name == "aten::add" for event in own.function_events)
    assert not traced.journal.read().tables["captures"]["kind"].size


def test_captures_beyond_the_limit_are_noted(
    traced: Traced, new_graph: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_captures, "MOST_CAPTURES", 2)
    for _ in range(5):
        capture(new_graph(), add)
    traced.captures.say_untraced()
    assert traced.journal.read().tables["captures"]["capture"].max() == 1
    assert traced.journal.part.notes == ["3 captures of CUDA graphs could not be traced."]


def test_a_folder_without_graphs_has_no_note(traced: Traced, tmp_path: Path) -> None:
    traced.captures.say_untraced()
    assert traced.journal.part.notes == []


# -- steps ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(guard: Guard, new_graph: object) -> Iterator[StepCounter]:
    def nothing(*_: object) -> None:
        pass

    steps = StepCounter(guard, before_optimizer=nothing, after_optimizer=nothing, ended=nothing)
    steps.install()
    steps.watch_replays(lambda _: None)
    yield steps
    steps.remove()


def test_replays_of_a_captured_optimizer_step_are_steps(
    counted: StepCounter, new_graph: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with_step, without = new_graph(), new_graph()
    optimizer.step()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    capture(with_step, optimizer.step)
    capture(without, add)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert counted.seen == 2
    for _ in range(3):
        without.replay()
        with_step.replay()
    assert counted.seen == 5
    capture(with_step, add)  # captured again, without the step
    with_step.replay()
    assert counted.seen == 5


def test_captures_that_fail_are_said_once_with_the_line_and_the_error_inside(
    guard: Guard, new_graph: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: capture was invalidated\nCompile with ...")

    def capture_in_a_block(graph: Any, work: Callable[[], Any]) -> None:
        graph.capture_begin()
        try:
            work()
        finally:
            graph.capture_end()

    notes: list[str] = []
    steps = StepCounter(guard, before_optimizer=lambda _: None, after_optimizer=lambda _: None, ended=lambda *_: None)
    steps.watch_replays(notes.append)
    base, graph = torch.cuda.CUDAGraph.__mro__[1], new_graph()
    try:
        capture_in_a_block(graph, add)
        assert not notes
        monkeypatch.setattr(base, "capture_end", fails)
        frames = []
        for _ in range(2):
            with pytest.raises(RuntimeError, match="invalidated") as raised:
                capture_in_a_block(graph, lambda: torch.ones(2) @ torch.ones(3))
            frames += [entry.name for entry in raised.traceback]
        with pytest.raises(RuntimeError, match="invalidated"):
            capture_in_a_block(graph, add)
    finally:
        steps.remove()
    assert frames[-2:] == ["capture_end", "fails"]  # and none of ours
    inside, at_the_end = notes
    assert "failed in test_graph_captures.py:" in inside
    assert "RuntimeError: inconsistent tensor size" in inside
    assert "RuntimeError: CUDA error: capture was invalidated. It has no replays" in at_the_end


def test_only_the_first_failed_captures_are_said_one_by_one() -> None:
    notes: list[str] = []
    failures = FailedCaptures(notes.append)
    failures.failed()
    assert not notes
    for number in range(MOST + 3):
        try:
            raise RuntimeError(f"{number}")
        except RuntimeError:
            failures.failed()
    assert len(notes) == MOST + 1
    assert notes[-1] == MORE
