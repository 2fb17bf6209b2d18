"""An optimizer whose step is compiled calls no hooks: its updates are noticed by the weights they change."""

from __future__ import annotations

import os
from collections.abc import Callable

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


def with_buffers_in_a_dict(model: nn.Module) -> tuple[Callable[[], None], object]:
    weights = dict(model.named_parameters())
    buffers = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    @torch.compile
    def update() -> None:
        with torch.no_grad():
            for name, weight in weights.items():
                assert weight.grad is not None
                buffers[name].mul_(0.9).add_(weight.grad)
                weight.sub_(0.01 * buffers[name])

    return update, buffers


def with_clipping_and_a_copy_of_the_weights(model: nn.Module) -> tuple[Callable[[], None], object]:
    weights: list[torch.Tensor] = [*model.parameters()]
    buffers, copies, scratch = ([torch.zeros_like(weight) for weight in weights] for _ in range(3))

    @torch.compile
    def step(weights: list[torch.Tensor], gradients: list[torch.Tensor], buffers: list[torch.Tensor]) -> None:
        norm = torch.stack([one.norm() for one in gradients]).norm()
        torch._foreach_copy_(scratch, gradients)
        torch._foreach_mul_(scratch, torch.clamp(1 / norm, max=1.0))
        torch._foreach_mul_(buffers, 0.9)
        torch._foreach_add_(buffers, scratch)
        for weight, buffer, copied in zip(weights, buffers, copies, strict=True):
            weight -= 0.01 * buffer
            copied[:] = 0.9 * copied + weight

    def update() -> None:
        with torch.no_grad():
            step(weights, [weight.grad for weight in weights if weight.grad is not None], buffers)

    return update, (buffers, copies, scratch)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compiler_caches")
@pytest.mark.parametrize("make", [with_buffers_in_a_dict, with_clipping_and_a_copy_of_the_weights])
def test_what_a_compiled_update_carries_to_the_next_one_is_optimizer_state(
    make: Callable[[nn.Module], tuple[Callable[[], None], object]],
) -> None:
    def program(_: object) -> object:
        model = nn.Linear(32, 4)
        update, kept = make(model)
        for _step in range(4):
            model.zero_grad()
            model(torch.ones(4, 32)).square().sum().backward()
            update()
        return model, update, kept

    for _cached in range(2):
        torch._dynamo.reset()
        run = record_own(program)
        found = sorted((block.name, block.module, block.bytes) for block in run.of("optimizer_state"))
        assert found == [("bias", "Linear", 16), ("weight", "Linear", 512)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compiler_caches")
def test_what_a_compiled_function_returns_for_the_next_update_is_optimizer_state() -> None:
    """In the functional style: weights and moments are new tensors after each update."""

    @torch.compile
    def update(
        weights: list[torch.Tensor], gradients: list[torch.Tensor], state: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
        made = [(0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g) for (m, v), g in zip(state, gradients, strict=True)]
        new = [weight - 0.01 * m / (v.sqrt() + 1e-8) for weight, (m, v) in zip(weights, made, strict=True)]
        return new, made, torch.stack([one.norm() for one in new])

    def program(_: object) -> object:
        weights = [torch.randn(32, 4), torch.zeros(4)]
        state = [(torch.zeros_like(one), torch.zeros_like(one)) for one in weights]
        norms = torch.zeros(2)
        for _step in range(5):
            leaves = [one.requires_grad_() for one in weights]
            (torch.ones(8, 32) @ leaves[0] + leaves[1]).square().sum().backward()
            with torch.no_grad():
                gradients = [one.grad for one in leaves if one.grad is not None]
                weights, state, norms = update([one.detach() for one in leaves], gradients, state)
        return weights, state, norms

    for _cached in range(2):
        torch._dynamo.reset()
        run = record_own(program)
        found = sorted(block.bytes for block in run.of("optimizer_state"))
        assert found == sorted(3 * 2 * [16, 512])  # nothing reads those of the last update
        assert {block.bytes for block in run.of("weight")} == {16, 512}
        assert not run.of("optimizer_state", bytes=8)


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
