"""Trains some steps with a small batch, and then one with a large batch.

Usage: python bench/lib/two_batches.py MODEL[-bf16][-compiled][-both]
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional

STEPS = 20
"""Steps with the small batch."""


class Block(nn.Module):
    """A block without attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the block's output."""
        added: torch.Tensor = self.down(functional.gelu(self.up(self.norm(x))))
        return x + added


class Text(nn.Module):
    """An embedding, blocks without attention, and a head."""

    def __init__(self, width: int = 512, words: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.body = self.make_body(width)
        self.head = nn.Linear(width, words)

    def make_body(self, width: int) -> nn.Module:
        """Return what lies between the embedding and the head."""
        return nn.Sequential(*(Block(width) for _ in range(6)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores of words."""
        scores: torch.Tensor = self.head(self.body(self.embed(ids)))
        return scores


class Attention(Text):
    """A transformer."""

    def make_body(self, width: int) -> nn.Module:
        """Return its layers."""
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
        return nn.TransformerEncoder(layer, 6)


class Scores(nn.Module):
    """Attention that keeps its scores: their size grows with the square of the length."""

    def __init__(self, width: int = 512, words: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(4))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.head = nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores of words."""
        x = self.embed(ids)
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = (one.unflatten(-1, (8, -1)).transpose(1, 2) for one in qkv(x).chunk(3, -1))
            weights = functional.dropout((q @ k.transpose(-1, -2) / 8).softmax(-1), 0.1)
            x = x + out((weights @ v).transpose(1, 2).flatten(2))
        scores: torch.Tensor = self.head(x)
        return scores


def convolution(channels_in: int, channels: int, stride: int = 1) -> nn.Module:
    """Return a convolution with normalization."""
    of_channels = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
    return nn.Sequential(of_channels, nn.BatchNorm2d(channels), nn.ReLU())


class Convolutions(nn.Module):
    """Twelve convolutions and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = convolution(3, 64)
        self.a = nn.Sequential(*(convolution(64, 64) for _ in range(3)))
        self.b = nn.Sequential(convolution(64, 128, 2), *(convolution(128, 128) for _ in range(3)))
        self.c = nn.Sequential(convolution(128, 256, 2), *(convolution(256, 256) for _ in range(3)))
        self.head = nn.Linear(256, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of classes."""
        scores: torch.Tensor = self.head(self.c(self.b(self.a(self.stem(x)))).mean((2, 3)))
        return scores


MODELS = {"mlp": Text, "attention": Attention, "scores": Scores, "convolutions": Convolutions}
BATCHES = {"scores": ((16, 128), (16, 1024)), "convolutions": ((32, 32), (1024, 32))}
"""Rows and length, or the size of a picture: small and large."""


def main(kind: str) -> None:
    """Train."""
    name, *more = kind.split("-")
    torch.manual_seed(0)
    model = MODELS[name]().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    called = torch.compile(model) if "compiled" in more else model
    small, large = ((16, 128), (40, 1000)) if "both" in more else BATCHES.get(name, ((16, 128), (16, 2048)))
    for rows, length in [*[small] * STEPS, large]:
        if name == "convolutions":
            x = torch.randn(rows, 3, length, length, device="cuda")
            y = torch.randint(0, 100, (rows,), device="cuda")
        else:
            x = torch.randint(0, 1000, (rows, length), device="cuda")
            y = x.flatten()
        with torch.autocast("cuda", torch.bfloat16, enabled="bf16" in more):
            loss = functional.cross_entropy(called(x).flatten(0, -2), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1])
