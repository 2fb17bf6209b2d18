"""Replays of CUDA graphs with calls of the model are steps: with graphs that do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from graphs_that_do_nothing import capture
from torch import nn
from torch.autograd import Function

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.launch.settings import AUTO, MODULE, OPTIMIZER
from gpuledger.collect.steps.call_steps import SWITCH_CALLS
from gpuledger.collect.steps.replayed_steps import MOST_CAPTURES
from gpuledger.collect.steps.step_counter import StepCounter

pytestmark = pytest.mark.torch
MODEL, HEAD, TAIL = range(3)
NewGraph = Callable[[], Any]


class Program:
    """What a program calls, captures and replays, and the kinds of its steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step_on: str) -> None:
        self.kinds: list[str] = []
        self.has_optimizer = False
        self._patch = monkeypatch
        self.counter = StepCounter(
            Guard(_raise),
            before_optimizer=lambda _: None,
            after_optimizer=lambda _: None,
            ended=lambda kind, *_: self.kinds.append(kind),
            step_on=step_on,
        )
        self.counter.install()
        self.counter.watch_compiled_calls(lambda _module_id: self.has_optimizer)
        self.counter.watch_replays(lambda _note: None)

    def call(self, *modules: int) -> None:
        for module_id in modules:
            self.counter.call_began(module_id, lambda: self.has_optimizer)
            self.counter.call_ended(module_id, lambda: self.has_optimizer)

    def capture(self, graph: Any, work: Callable[[], None]) -> Any:
        self._patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        capture(graph, work)
        self._patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        return graph


def _raise(error: BaseException) -> None:
    raise error


@pytest.fixture
def step_on() -> str:
    return AUTO


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, new_graph: NewGraph, step_on: str) -> Iterator[Program]:
    found = Program(monkeypatch, step_on)
    yield found
    found.counter.remove()


@pytest.mark.parametrize(("step_on", "steps"), [(AUTO, 5), (MODULE, 5), (OPTIMIZER, 0), ("call:Model", 0), ("mark", 0)])
def test_replays_of_captured_calls_are_steps(steps: int, program: Program, new_graph: NewGraph) -> None:
    """As those of a server that has a graph for each batch size."""
    with torch.inference_mode():
        sizes = []
        for _ in range(2):
            program.call(MODEL)
            sizes.append(program.capture(new_graph(), lambda: program.call(MODEL)))
        before = program.counter.seen
    for graph in [*sizes, sizes[0], *sizes]:  # outside inference mode, as in a function of its own
        graph.replay()
    assert program.counter.seen - before == steps
    assert program.kinds[before:] == ["replay"] * steps


def test_replays_of_other_work_are_no_steps(program: Program, new_graph: NewGraph) -> None:
    with torch.no_grad():
        graph = program.capture(new_graph(), lambda: program.call(MODEL))
        other = program.capture(new_graph(), lambda: None)
        program.capture(graph, lambda: None)  # captured again, without the call
        program.call(MODEL)
        graph.replay()
        other.replay()
    assert program.kinds == ["call", "call"]


class Graphed(nn.Module):
    """A module that replays a graph in its calls, as ``make_graphed_callables`` and cudagraph trees let it."""

    def __init__(self, graph: Any) -> None:
        super().__init__()
        self.graph = graph

    def forward(self) -> None:
        self.graph.replay()


def test_replays_inside_calls_do_not_count_twice(program: Program, new_graph: NewGraph) -> None:
    with torch.no_grad():
        graph = program.capture(new_graph(), lambda: program.call(MODEL))
        Graphed(graph)()
        assert program.kinds == ["call"]
        graph.replay()
    assert program.kinds == ["call", "replay"]


class ReplayInBackward(Function):
    """Replays a graph in backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, graph: Any) -> Any:
        ctx.graph = graph
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.graph.replay()
        return gradients[0], None


def test_replays_inside_backward_are_parts_of_it(program: Program, new_graph: NewGraph) -> None:
    """As of a graph with layers that are computed again."""
    graph = program.capture(new_graph(), lambda: program.call(MODEL))
    x = torch.ones(2, requires_grad=True)
    for _ in range(3):
        ReplayInBackward.apply(x, graph).sum().backward()
    assert program.kinds == []


def test_a_call_that_autograd_records_ends_with_the_next_one(program: Program, new_graph: NewGraph) -> None:
    """Backward can be another graph, and the program can update the weights itself."""
    graph = program.capture(new_graph(), lambda: program.call(MODEL))
    backward = program.capture(new_graph(), lambda: None)
    for _ in range(4):
        graph.replay()
        backward.replay()
    assert program.kinds == ["call", "replay", "replay", "replay"]
    program.counter.end_with_program(lambda: False)
    assert program.counter.seen == 5


def test_replays_of_a_model_that_is_trained_are_no_steps(program: Program, new_graph: NewGraph) -> None:
    """The optimizer's step is outside the graphs, and is the step."""
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    program.has_optimizer = True
    graph = program.capture(new_graph(), lambda: program.call(MODEL))
    for _ in range(3):
        graph.replay()
        weight.grad = torch.ones(4)
        optimizer.step()
    with torch.no_grad():
        graph.replay()
    assert program.kinds == ["optimizer"] * 3


@pytest.mark.parametrize(("step_on", "kinds"), [(AUTO, ["optimizer"] * 2), (MODULE, ["replay"] * 2)])
def test_a_captured_training_step_has_one_step_for_each_replay(
    kinds: list[str], program: Program, new_graph: NewGraph
) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def train() -> None:
        program.call(MODEL)
        optimizer.step()

    graph = program.capture(new_graph(), train)
    graph.replay()
    program.kinds.clear()
    graph.replay()
    graph.replay()
    assert program.kinds == kinds


def test_graphs_of_parts_are_one_step_together(program: Program, new_graph: NewGraph) -> None:
    """The calls of the followed part are steps, as without graphs."""
    with torch.no_grad():
        graphs = [program.capture(new_graph(), partial(program.call, part)) for part in (HEAD, TAIL)]
        assert program.kinds == ["call"]
        for _ in range(SWITCH_CALLS + 3):
            for graph in graphs:
                graph.replay()
    assert program.kinds == ["call"] + ["replay"] * (SWITCH_CALLS + 3)


def test_a_graph_of_several_modules_is_one_step(program: Program, new_graph: NewGraph) -> None:
    """As of a model whose ``forward`` is called, so that its layers are the outermost modules."""
    with torch.no_grad():
        program.call(MODEL)
        graph = program.capture(new_graph(), lambda: program.call(HEAD, MODEL, TAIL, MODEL))
        program.kinds.clear()
        for _ in range(SWITCH_CALLS + 3):
            graph.replay()
    assert program.kinds == ["replay"] * (SWITCH_CALLS + 3)


def test_calls_beside_replays_are_steps_of_their_own(program: Program, new_graph: NewGraph) -> None:
    """A prompt is a call, and each further token a replay."""
    with torch.no_grad():
        graph = program.capture(new_graph(), lambda: program.call(MODEL))
        program.kinds.clear()
        for _ in range(2):
            program.call(MODEL)
            graph.replay()
            graph.replay()
    assert program.kinds == ["call", "replay", "replay"] * 2


def test_steps_that_prepare_others_are_known(program: Program, new_graph: NewGraph) -> None:
    with torch.no_grad():
        program.call(MODEL)
        assert program.counter.prepared == 0
        graph = program.capture(new_graph(), lambda: program.call(MODEL))
        assert program.counter.prepared == 2
        program.call(MODEL)
        graph.replay()
        graph.replay()
        assert program.counter.prepared == 4
        for _ in range(MOST_CAPTURES + 5):  # a program that captures as its work
            program.call(MODEL)
            program.capture(graph, lambda: None)
    assert program.counter.prepared == 5 + MOST_CAPTURES
