"""What the sets of bench/lib/blind_train.py have in common: blocks of layers, and inputs on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Training = tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], str]
"""Model, inputs, and the dtype of autocast."""


class Residual(nn.Module):
    """The sum of a branch and of a shortcut, and a ReLU."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        return F.relu(self.branch(data) + self.shortcut(data))


class Excited(nn.Module):
    """Channels that are scaled by a function of their means, as in squeeze-and-excitation."""

    def __init__(self, width: int, kind: type[nn.Module]) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            kind(width, width // 4, 1), nn.ReLU(), kind(width // 4, width, 1), nn.Hardsigmoid()
        )  # fmt: skip

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return the scaled channels."""
        means = data.mean(tuple(range(2, data.dim())), keepdim=True)
        return data * self.scale(means)  # type: ignore[no-any-return]


def block(kind: type[nn.Module], norm: Callable[[int], nn.Module], *sizes: int, **how: Any) -> nn.Sequential:
    """Return layers of a kind from each size to the next, each with a norm and a ReLU."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [kind(before, after, **how), norm(after), nn.ReLU()]
    return nn.Sequential(*layers)


def images(*shape: int) -> Callable[[], torch.Tensor]:
    """Return what draws random inputs of a shape."""
    return lambda: torch.randn(*shape, device="cuda")


def channels_last(*shape: int) -> Callable[[], torch.Tensor]:
    """Return what draws random images of a shape in channels_last."""
    return lambda: torch.randn(*shape, device="cuda").to(memory_format=torch.channels_last)
