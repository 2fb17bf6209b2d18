"""Operators that a program defines itself, in the ways that PyTorch has on the CPU, each called by a module of its own.

Used by a test and, as a file, by programs that tests start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 32


@torch.library.custom_op("gpuledger_kinds::scaled", mutates_args=())
def scaled(x: Tensor, by: float) -> Tensor:
    """Return a multiple."""
    return x * by


@scaled.register_fake
def _(x: Tensor, by: float) -> Tensor:
    return torch.empty_like(x)


def _keep_factor(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.by = inputs[1]
    ctx.save_for_backward(output)


def _scaled_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return scaled(gradient, ctx.by), None


scaled.register_autograd(_scaled_backward, setup_context=_keep_factor)


@torch.library.custom_op("gpuledger_kinds::two", mutates_args=())
def two(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return two tensors."""
    return x * 2, x + 1


@two.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


two.register_autograd(lambda _ctx, first, second: first * 2 + second)


@torch.library.custom_op("gpuledger_kinds::fill", mutates_args=("out",))
def fill(x: Tensor, out: Tensor) -> None:
    """Write into ``out``."""
    out.copy_(x * 3)


@fill.register_fake
def _(x: Tensor, out: Tensor) -> None:
    return None


_LIBRARY = torch.library.Library("gpuledger_cube", "DEF")
_LIBRARY.define("cube(Tensor x) -> Tensor")
_LIBRARY.define("cube_backward(Tensor gradient, Tensor x) -> Tensor")
_LIBRARY.impl("cube", lambda x: x * x * x, "CPU")
_LIBRARY.impl("cube", torch.empty_like, "Meta")
_LIBRARY.impl("cube_backward", lambda gradient, x: gradient * 3 * x * x, "CPU")
_LIBRARY.impl("cube_backward", lambda gradient, x: torch.empty_like(x), "Meta")


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.gpuledger_cube.cube(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return torch.ops.gpuledger_cube.cube_backward(gradients[0], *ctx.saved_tensors)


_LIBRARY.impl("cube", lambda x: _Cube.apply(x), "Autograd")  # type: ignore[no-untyped-call]


class Doubled(torch.autograd.Function):
    """A function of the program that keeps a tensor of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return twice the input."""
        kept = x * 2
        ctx.save_for_backward(kept)
        return kept + 0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradient of the input."""
        (kept,) = ctx.saved_tensors
        return gradients[0] * 2 + kept * 0


class Scaled(nn.Module):
    """Calls an operator with an autograd formula."""

    def forward(self, x: Tensor) -> Any:
        """Return the operator's result."""
        return scaled(x, 0.5)


class Two(nn.Module):
    """Calls an operator with two results."""

    def forward(self, x: Tensor) -> Any:
        """Return a product of the results."""
        first, second = two(x)
        return first * second


class Filled(nn.Module):
    """Calls an operator that writes into its argument."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the input and what was written."""
        out = torch.empty_like(x.detach())
        fill(x.detach(), out)
        return x * out


class Cubed(nn.Module):
    """Calls an operator of a library with a kernel for each dispatch key."""

    def forward(self, x: Tensor) -> Any:
        """Return the operator's result."""
        return torch.ops.gpuledger_cube.cube(x)


class Function(nn.Module):
    """Calls an autograd function."""

    def forward(self, x: Tensor) -> Any:
        """Return the function's result."""
        return Doubled.apply(x)  # type: ignore[no-untyped-call]


class InPlace(nn.Module):
    """Changes an operator's result in place."""

    def forward(self, x: Tensor) -> Any:
        """Return the changed result."""
        return scaled(x, 2.0).mul_(0.5)


class Plain(nn.Module):
    """Calls no operator of its own."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the input."""
        return x


KINDS: dict[str, type[nn.Module]] = {
    "scaled": Scaled,
    "two": Two,
    "filled": Filled,
    "cubed": Cubed,
    "function": Function,
    "in_place": InPlace,
}


class Net(nn.Module):
    """A module of each kind, between linear layers."""

    def __init__(self, kinds: Mapping[str, Callable[[], nn.Module]], *, checkpointed: bool = False) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.kinds = nn.ModuleDict({name: kind() for name, kind in kinds.items()})
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in kinds)

    def forward(self, x: Tensor) -> Tensor:
        """Return the last layer's output."""
        for kind, layer in zip(self.kinds.values(), self.layers, strict=True):
            x = layer(x)
            x = checkpoint(kind, x, use_reentrant=False) if self.checkpointed else kind(x)
        return x
