"""Gradients of leaves that are no parameters, and gradients that a program gives to its parameters."""

from __future__ import annotations

from typing import Any

import torch
from recorded import record_own
from torch import nn
from torch.func import functional_call, grad, vmap

SAMPLES = 16


def test_gradients_of_single_samples_are_of_the_parameters_that_were_detached() -> None:
    """As in PyTorch's own example of gradients per sample."""
    net = nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(net, parameters, (x[None],)).square().mean()

    def program(_: Any) -> None:
        for _step in range(3):
            detached = {name: one.detach() for name, one in net.named_parameters()}
            gradients = vmap(grad(loss), in_dims=(None, 0))(detached, torch.randn(SAMPLES, 8))
            for name, parameter in net.named_parameters():
                parameter.grad = gradients[name].mean(0)
            optimizer.step()

    found = record_own(program)
    sizes = {SAMPLES * 4 * one.numel(): name for name, one in net.named_parameters() if one.dim() == 2}
    owners = {(sizes[one.bytes], one.name, one.module) for one in found.of("gradient") if one.bytes in sizes}
    assert owners == {("0.weight", "0.weight", "0"), ("1.weight", "1.weight", "1")}


def test_a_view_of_another_place_or_size_is_not_the_parameter() -> None:
    net = nn.Linear(8, 4, bias=False)

    def program(_: Any) -> None:
        for start in (0, 2):
            half = net.weight.detach()[start : start + 2].requires_grad_()
            (gradient,) = torch.autograd.grad((torch.randn(SAMPLES, 8) @ half.T).square().sum(), half)
            net(torch.randn(SAMPLES, 8)).sum().backward()
            assert gradient.shape == half.shape
            net.weight.grad = None

    found = record_own(program)
    assert {one.module for one in found.of("gradient") if one.bytes == 2 * 8 * 4} == {""}


def test_what_the_program_puts_into_grad_is_a_gradient() -> None:
    """As with weights in half precision, and a copy of them in full precision that the optimizer updates."""
    net = nn.Linear(64, 12, bias=False).bfloat16()
    master = net.weight.detach().float().requires_grad_()
    optimizer = torch.optim.SGD([master], lr=0.1, momentum=0.9)

    def program(_: Any) -> None:
        for _step in range(3):
            net.zero_grad()
            net(torch.ones(SAMPLES, 64, dtype=torch.bfloat16)).mean().backward()
            gradient = net.weight.grad
            assert gradient is not None
            master.grad = gradient.float()
            optimizer.step()
            optimizer.zero_grad()

    found = record_own(program)
    assert [one.step for one in found.of("gradient") if one.bytes == master.nbytes] == [1, 2, 3]
    assert found.of("input", bytes=master.nbytes) == []
    assert len(found.of("optimizer_state", bytes=master.nbytes)) == 1


def test_gradients_of_new_weights_in_each_step_are_of_the_parameters_that_they_stand_in_for() -> None:
    net = nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 3))

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(net, parameters, (x[None],)).square().mean()

    def program(_: Any) -> None:
        params = {name: one.detach() for name, one in net.named_parameters()}
        for _step in range(3):
            gradients = vmap(grad(loss), in_dims=(None, 0))(params, torch.randn(SAMPLES, 8))
            params = {name: one - 0.1 * gradients[name].mean(0) for name, one in params.items()}

    found = record_own(program)
    sizes = {SAMPLES * 4 * one.numel(): name for name, one in net.named_parameters() if one.dim() == 2}
    owners = [(sizes[one.bytes], one.name, one.module) for one in found.of("gradient") if one.bytes in sizes]
    assert len(owners) == 6
    assert set(owners) == {("0.weight", "0.weight", "0"), ("1.weight", "1.weight", "1")}


def test_samples_of_a_vectorized_call_are_inputs() -> None:
    net = nn.Linear(8, 5)

    def program(_: Any) -> None:
        for _step in range(3):
            batch = torch.randn(SAMPLES, 8)
            vmap(net)(batch).sum().backward()
            net.zero_grad()

    found = record_own(program)
    assert [one.category for one in found.blocks if one.bytes == SAMPLES * 8 * 4 and one.name == "batch"] == [
        "input"
    ] * 3
