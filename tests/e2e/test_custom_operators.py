"""Custom operators and autograd functions are on the module that runs them, forward and backward."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from recorded import Recorded, record_own
from torch import Tensor, nn

pytestmark = pytest.mark.torch
SHAPE = (64, 32)
SIZE_BYTES = 64 * 32 * 4


@torch.library.custom_op("gpuledger_tests::scaled", mutates_args=())
def scaled(x: Tensor, by: float) -> Tensor:
    return x * by


@scaled.register_fake
def _(x: Tensor, by: float) -> Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.by = inputs[1]
    ctx.save_for_backward(output)


def _scaled_backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return scaled(gradient, context.by), None


scaled.register_autograd(_scaled_backward, setup_context=_setup)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        kept = x * 2
        context.save_for_backward(kept)
        return kept + 0

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        (kept,) = context.saved_tensors
        return gradients[0] * 2 + kept * 0


class WithOperator(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return scaled(x, 3.0)


class WithFunction(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class Net(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before, self.inner, self.after = nn.Linear(32, 32), inner, nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x)))


def record(inner: nn.Module) -> Recorded:
    def program(_: object) -> object:
        net = Net(inner)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _step in range(2):
            net(torch.randn(SHAPE)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return net, optimizer

    return record_own(program, steps=(1, 2))


@pytest.mark.parametrize(("inner", "forward", "backward"), [(WithOperator(), 1, 1), (WithFunction(), 2, 3)])
def test_buffers_of_a_custom_operator_are_on_its_module(inner: nn.Module, forward: int, backward: int) -> None:
    run = record(inner)
    made: Counter[str] = Counter()
    for block in run.blocks:
        if block.module == "inner" and block.step == 2 and block.bytes == SIZE_BYTES:
            made[block.phase] += 1
    assert made == {"forward": forward, "backward": backward}
    elsewhere = [block for block in run.blocks if not block.module and block.phase in ("forward", "backward")]
    assert all(block.bytes <= 4 for block in elsewhere)  # the sum and its gradient
