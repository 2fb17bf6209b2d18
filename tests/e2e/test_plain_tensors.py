"""Trainings on plain tensors, without a module and without an optimizer of torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from recorded import Block, record_own
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

pytestmark = pytest.mark.torch


class Layer:
    def __init__(self, inputs: int, outputs: int) -> None:
        self.weight = torch.randn(inputs, outputs).requires_grad_()


def grad_of(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def named(blocks: list[Block]) -> set[tuple[str, int]]:
    return {(block.name, block.bytes) for block in blocks}


def test_a_hand_written_update() -> None:
    def program(_: object) -> object:
        w1, w2 = torch.randn(8, 16, requires_grad=True), torch.randn(16, 2, requires_grad=True)
        for _step in range(3):
            (torch.ones(4, 8) @ w1).relu().matmul(w2).square().sum().backward()
            with torch.no_grad():
                for weight in (w1, w2):
                    weight -= 0.01 * grad_of(weight)
                    weight.grad = None
        return w1, w2

    run = record_own(program)
    assert named(run.of("weight")) == {("w1", 512), ("w2", 128)}
    assert named(run.of("gradient")) == {("w1", 512), ("w2", 128)}
    assert len(run.of("gradient")) == 6


def test_weights_in_objects_lists_and_dictionaries_have_the_shortest_name() -> None:
    def program(_: object) -> object:
        layers, scales = [Layer(8, 4), Layer(4, 2)], {"out": torch.ones(2, requires_grad=True)}
        every = [*(layer.weight for layer in layers), scales["out"]]
        x = torch.ones(3, 8)
        for layer in layers:
            x = x @ layer.weight
        (x * scales["out"]).sum().backward()
        return every

    names = {("layers[0].weight", 128), ("layers[1].weight", 32), ("scales['out']", 8)}
    assert named(record_own(program).of("weight")) == names


def test_a_weight_that_an_update_replaces_keeps_its_name() -> None:
    def program(_: object) -> object:
        params = [torch.randn(8, 2, requires_grad=True)]
        for _step in range(3):
            (torch.ones(4, 8) @ params[0]).square().sum().backward()
            params = [(one - 0.01 * grad_of(one)).detach().requires_grad_() for one in params]
        params[0].sum().backward()
        return params

    run = record_own(program)
    assert [(block.name, block.bytes) for block in run.of("weight")] == [("params[0]", 64)] * 4


def test_autograd_grad_returns_gradients_of_leaves() -> None:
    def program(_: object) -> object:
        model = nn.Linear(8, 2)
        grads = torch.autograd.grad(model(torch.ones(4, 8)).sum(), list(model.parameters()))
        return model, grads

    assert named(record_own(program).of("gradient")) == {("weight", 64), ("bias", 8)}


def test_a_gradient_that_is_computed_with_is_none() -> None:
    """A gradient penalty: of the pass that makes a graph, nothing is a gradient."""

    def program(_: object) -> object:
        w, x = torch.randn(8, 2, requires_grad=True), torch.randn(4, 8, requires_grad=True)
        (slope,) = torch.autograd.grad((x @ w).square().sum(), x, create_graph=True)
        slope.norm().backward(inputs=[w])
        return w, x

    assert named(record_own(program).of("gradient")) == {("w", 64)}


@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: vmap(f, in_dims=(None, 0))], ids=["grad", "per sample"])
def test_gradients_of_torch_func(wrap: Any) -> None:
    def program(_: object) -> object:
        params = {"w": torch.randn(8, 2)}
        grads = wrap(grad(lambda params, x: (x @ params["w"]).square().sum()))(params, torch.ones(4, 8))
        return params, grads

    run = record_own(program)
    assert {block.name for block in run.of("gradient")} == {"params['w']"}
    assert run.of("weight") == []  # nothing says what the program does with it


def test_parameters_that_others_stood_in_for_are_weights() -> None:
    def program(_: object) -> object:
        model = nn.Linear(8, 2, bias=False)
        params = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
        functional_call(model, params, torch.ones(4, 8)).sum().backward()
        return model, params

    weights = record_own(program).of("weight")
    assert [(block.name, block.bytes) for block in weights] == [("weight", 64)] * 2


def test_a_detached_activation_with_a_gradient_is_no_weight() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 4, bias=False), nn.Linear(4, 2, bias=False)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            cut = self.first(x).detach().requires_grad_()
            return cut, self.second(cut)

    def program(_: object) -> object:
        model = Halves()
        cut, out = model(torch.ones(3, 8))
        out.sum().backward()
        return model, cut

    assert named(record_own(program).of("weight")) == {("first.weight", 128), ("second.weight", 32)}


def test_an_input_with_a_gradient_stays_an_input() -> None:
    def program(_: object) -> object:
        model, image = nn.Linear(8, 2, bias=False), torch.rand(4, 8, requires_grad=True)
        model(image).sum().backward()
        return model, image

    run = record_own(program)
    assert [block.bytes for block in run.of("input")] == [128]
    assert named(run.of("gradient")) == {("weight", 64), ("image", 128)}


def test_parameters_of_an_optimizer_are_of_their_module_although_others_stood_in_first() -> None:
    def program(_: object) -> object:
        model = nn.Linear(8, 2, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for _step in range(2):
            fast = {"weight": model.weight}
            for _inner in range(2):
                loss = functional_call(model, fast, torch.ones(4, 8)).square().sum()
                (slope,) = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
                fast = {"weight": fast["weight"] - 0.1 * slope}
            functional_call(model, fast, torch.ones(4, 8)).square().sum().backward()
            optimizer.step()
        return model, optimizer

    recorded = record_own(program)
    for category in ("weight", "optimizer_state"):
        assert {(block.name, block.module) for block in recorded.of(category)} == {("weight", "Linear")}
    fast = [block for block in recorded.of("activation") if block.name == "weight" and block.step == 2]
    assert [(block.module, block.bytes) for block in fast] == [("Linear", 64)] * 2  # of two inner updates


def test_parameters_of_an_optimizer_are_of_their_module_although_the_first_call_had_copies() -> None:
    def program(_: object) -> object:
        model = nn.Linear(8, 2, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        copies = {"weight": model.weight.detach().clone().requires_grad_()}
        functional_call(model, copies, torch.ones(4, 8)).sum().backward()
        for _step in range(2):
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
        return model, optimizer

    recorded = record_own(program)
    assert {(block.name, block.module) for block in recorded.of("optimizer_state")} == {("weight", "Linear")}


@pytest.mark.parametrize("with_graph", [False, True])
def test_data_made_after_a_call_that_tried_shapes_is_no_activation(with_graph: bool) -> None:
    """A call without a backward leaves the phase "forward". What lasts and has no graph belongs to no forward."""

    def program(_: object) -> object:
        model = nn.Conv1d(1, 4, 3)
        width = model(torch.zeros(1, 1, 8)).numel()
        replay = torch.zeros(1000, width) * model.weight.mean() if with_graph else torch.zeros(1000, width)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(3):
            model(torch.ones(2, 1, 8)).sum().backward()
            optimizer.step()
            replay.detach()[step] = 1.0
        return model, replay

    (block,) = (one for one in record_own(program).blocks if one.name == "replay")
    assert (block.bytes, block.category) == (96000, "activation" if with_graph else "other")
    assert block.phase == ("forward" if with_graph else "setup")


def test_what_a_closure_computes_for_its_backward_is_an_activation() -> None:
    def program(_: object) -> object:
        x, c = torch.linspace(-3, 3, 400), torch.ones(2, requires_grad=True)
        optimizer = torch.optim.LBFGS([c], max_iter=4)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (c[0] * torch.sin(c[1] * x) - x).square().mean()
            loss.backward()
            return loss

        for _step in range(3):
            optimizer.step(closure)
        return x, c, optimizer

    run = record_own(program)
    assert {block.phase for block in run.of("activation", bytes=1600)} == {"optimizer"}
    assert not [block for block in run.of("activation") if block.kept]
    assert {block.bytes for block in run.of("optimizer_state")} >= {8}
