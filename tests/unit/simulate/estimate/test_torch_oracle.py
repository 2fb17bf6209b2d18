"""The transformer of PyTorch's tests of its checkpoint planner: the peak on an H200, and what the planner says."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gpuledger

pytestmark = pytest.mark.torch

PLANNER_BYTES, PLANNER_TOLERANCE = 2_583_888_896, 0.05
"""Source of both: test_sac_ilp.py in test/distributed/_tools of PyTorch, which adds up modules for an A100."""
H200_BYTES = 2_531_752_960
"""``torch.cuda.max_memory_allocated()`` after the second step on an H200 with torch 2.11, 2026-11-28."""
ROWS, LENGTH, WORDS, WIDTH, HEADS, LAYERS, DROPS = 8, 1024, 8192, 768, 12, 4, 0.1


class Block(nn.Module):
    """Attention and a feed-forward part, each after a norm and beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.made = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)])
        self.joined = nn.Linear(WIDTH, WIDTH, bias=False)
        self.forward_part = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        normed = self.norms[0](x)
        heads = [made(normed).view(ROWS, LENGTH, HEADS, -1).transpose(1, 2) for made in self.made]
        attended = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], None, DROPS, True)
        h = x + F.dropout(self.joined(attended.transpose(1, 2).reshape(ROWS, LENGTH, -1)), DROPS)
        result: Tensor = h + F.dropout(self.forward_part(self.norms[1](h)), DROPS)
        return result


class Net(nn.Module):
    """The blocks between an embedding and a projection with the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.scores.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of all words."""
        x = self.words(tokens)
        x = F.dropout(x + self.places(torch.arange(LENGTH, device=tokens.device)), DROPS)
        result: Tensor = self.scores(self.norm(self.blocks(x)))
        return result


def test_the_peak_of_a_transformer_is_that_of_a_gpu() -> None:
    """The gradient of the sum is expanded: cuBLAS needs a copy of it, and the peak is in that product."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True)

    def step(tokens: Tensor) -> None:
        model(tokens).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    found = gpuledger.estimate(step, torch.randint(0, WORDS, (ROWS, LENGTH)), gpu="h200")
    assert found.peak_allocated_bytes == pytest.approx(H200_BYTES, rel=1e-3)
    assert found.peak_allocated_bytes == pytest.approx(PLANNER_BYTES, rel=PLANNER_TOLERANCE)
