"""A process group of several ranks in one process: collectives return at once and copy nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, distributed, nn


@contextmanager
def fake_ranks(count: int, rank: int = 0) -> Iterator[None]:
    """Make this process rank ``rank`` of ``count`` ranks."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=rank, world_size=count, store=FakeStore())
    try:
        yield
    finally:
        distributed.destroy_process_group()


class Block(nn.Module):
    """A feed-forward block."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return x + torch.relu(self.up(x)) @ self.down.weight.T


class Net(nn.Module):
    """An embedding, two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, 64)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(64, 128, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return torch.mul(self.head(x), 1.0)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    """Train on random tokens."""
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randint(0, 128, (4, 16))).float().square().mean().backward()
        optimizer.step()
