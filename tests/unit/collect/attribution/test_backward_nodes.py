"""Modules of the nodes that backward creates, also if autograd runs it in a thread of its own, as for a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from device_thread import backward_in_another_thread
from recorded import record_own
from torch import nn

SAMPLES = 64
WIDE, WIDER = 5, 7


def penalized(net: nn.Module) -> torch.Tensor:
    """A loss with the gradient of the output, and the output itself in a second call."""
    x = torch.randn(SAMPLES, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    return (slope.square().sum(1) - 1).square().mean() + net(x.detach() * 2).mean()


def mean_of_its_own(net: nn.Module) -> torch.Tensor:
    """A loss whose gradient's graph is made by ``backward``."""
    x = torch.randn(SAMPLES, 3, requires_grad=True)
    net(x).square().sum().backward(create_graph=True)
    assert x.grad is not None
    slope, x.grad = x.grad, None
    net.zero_grad()
    return slope.square().mean()


def made_in_backward(loss: Callable[[nn.Module], torch.Tensor], around: Callable[[], Any]) -> Counter[tuple[int, str]]:
    """Return how many blocks of each size backward has made in each module, in three steps."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, WIDE), nn.Tanh(), nn.Linear(WIDE, WIDER), nn.Tanh(), nn.Linear(WIDER, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def program(_: Any) -> None:
        for _step in range(3):
            optimizer.zero_grad()
            with around():
                loss(net).backward()
            optimizer.step()

    found = record_own(program)
    return Counter((block.bytes, block.module) for block in found.blocks if block.phase == "backward")


@pytest.mark.parametrize("around", [nullcontext, backward_in_another_thread])
def test_a_gradient_penalty_is_in_the_layers(around: Callable[[], Any]) -> None:
    found = made_in_backward(penalized, around)
    by_size = {size: {module for bytes_, module in found if bytes_ == 4 * SAMPLES * size} for size in (WIDE, WIDER)}
    assert by_size == {
        WIDE: {"0", "1", "2"},
        WIDER: {"2", "3", "4"},
    }
    assert found == made_in_backward(penalized, nullcontext)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_backward_that_makes_a_graph_leaves_its_nodes_to_the_layers() -> None:
    found = made_in_backward(mean_of_its_own, nullcontext)
    layers = [str(number) for number in range(5)]
    assert {module for bytes_, module in found if bytes_ > 4 * SAMPLES * 3} <= set(layers)
