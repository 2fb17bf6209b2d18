"""An optimizer whose step is compiled calls no hooks: its updates are noticed by the weights they change."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")
import torch
from recorded import Recorded, record_own
from torch import nn
from torch._dynamo import compiled_autograd

from gpuledger import scope
from gpuledger.collect.adapter.dynamo import is_compilers_own

pytestmark = pytest.mark.torch


def train(*, accumulated: int) -> Recorded:
    """Return a recording of an Adam without hooks that steps once in ``accumulated`` calls of its model."""

    def program(_: object) -> object:
        net = nn.Linear(64, 64)
        optimizer = torch.optim.Adam(net.parameters())
        step_without_hooks = vars(type(optimizer).step)["__wrapped__"]  # what torch.compile leaves of it
        for number in range(4 * accumulated):
            net(torch.randn(8, 64)).sum().backward()
            if number % accumulated == accumulated - 1:
                step_without_hooks(optimizer)
                optimizer.zero_grad()
        return net, optimizer

    return record_own(program, steps=(1, 2))


@pytest.mark.parametrize("accumulated", [1, 3])
def test_an_update_that_no_hook_tells_of_ends_a_step(accumulated: int) -> None:
    run = train(accumulated=accumulated)
    assert [step for step in run.steps if step[2]] == [(1, "call", True), (2, "call", True)]
    assert run.bytes_of("optimizer_state") == 2 * (64 * 64 + 64) * 4 + 2 * 4
    starts = [row["start_ns"] for row in run.tables["steps"]]
    assert starts == sorted(starts)


@pytest.mark.filterwarnings("ignore")  # Dynamo reads attributes that warn
@pytest.mark.usefixtures("compiler_caches")
def test_state_that_the_compiler_initializes_is_recorded() -> None:
    def program(_: object) -> object:
        net = nn.Linear(64, 64)
        optimizer = torch.optim.Adam(net.parameters())
        step = torch.compile(optimizer.step)
        for _step in range(4):
            net(torch.randn(8, 64)).sum().backward()
            step()
            optimizer.zero_grad()
        return net, optimizer, step

    torch._dynamo.reset()
    run = record_own(program, steps=(1, 3))
    assert run.bytes_of("optimizer_state") >= 2 * (64 * 64 + 64) * 4
    stacks: dict[int, list[str]] = {}
    for row in run.tables["stacks"]:
        stacks.setdefault(row["stack_id"], []).append(row["file"])
    torch_files = os.path.dirname(torch.__file__)
    made = {row["stack_id"] for row in run.tables["blocks"] if row["category"] == "optimizer_state"}
    assert {next(file for file in stacks[one] if not file.startswith(torch_files)) for one in made} == {__file__}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compiler_caches")
def test_a_step_that_a_compiled_function_contains_is_in_the_phase_of_the_optimizer() -> None:
    def program(_: object) -> object:
        net = nn.Linear(64, 64)
        optimizer = torch.optim.Adam(net.parameters())

        @torch.compile
        def update() -> torch.Tensor:
            optimizer.step()
            return torch.zeros(64)

        kept = []
        for _step in range(6):
            net(torch.randn(8, 64)).sum().backward()
            kept.append(update())
            optimizer.zero_grad()
        return net, optimizer, update, kept

    torch._dynamo.reset()
    run = record_own(program, steps=(1, 2), passes="memory,time")
    adam = {number for number, one in enumerate(run.manifest.fusions) if "lerp" in one.kernel or "sqrt" in one.kernel}
    phases = {row["phase"] for row in run.tables["spans"] if row["fusion_id"] in adam}
    assert phases == {"optimizer"}
    lines = {row["function"] for row in run.tables["stacks"]}
    assert "update" in lines
    assert not any(name.startswith("torch_dynamo_resume") for name in lines)


@pytest.mark.filterwarnings("ignore")  # torch reads .grad of tensors that are no leaves
def test_compiled_autograd_gets_none_of_our_hooks() -> None:
    seen: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
        seen.append(graph)
        return graph

    def program(_: object) -> object:
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _step in range(2):
            with scope("forward"):
                loss = net(torch.ones(4, 8)).sum()
            with compiled_autograd._enable(keep):
                loss.backward()
            optimizer.step()
        return net, optimizer

    program(None)
    bare = [graph.print_readable(print_output=False) for graph in seen]
    seen.clear()
    compiled_autograd.reset()
    run = record_own(program, steps=(1, 2))
    assert [graph.print_readable(print_output=False) for graph in seen] == bare
    assert {step for step, _, _ in run.steps} == {1, 2}
    assert not [one["class_name"] for one in run.tables["modules"] if "CompiledAutograd" in one["class_name"]]


def test_a_graph_of_the_compiler_is_no_module_of_the_program() -> None:
    seen: list[nn.Module] = []

    def keep(graph: nn.Module, _inputs: object) -> nn.Module:
        seen.append(graph)
        return graph

    net = nn.Linear(4, 4)
    torch.compile(net, backend=keep)(torch.ones(1, 4))
    assert [is_compilers_own(graph) for graph in seen] == [True]
    assert not is_compilers_own(net)
    assert not is_compilers_own(torch.compile(net))
    autograd = torch.fx.GraphModule(net, torch.fx.symbolic_trace(net).graph, "CompiledAutograd0")
    assert is_compilers_own(autograd)
    assert is_compilers_own(torch.compile(autograd))
    assert not is_compilers_own(torch.fx.symbolic_trace(net))
    root = nn.Module()
    root._tensor_constant0 = torch.ones(())  # what compiled autograd traces into
    assert is_compilers_own(root)
    root.scale = torch.ones(2)  # a plain module of the program
    assert not is_compilers_own(root)
