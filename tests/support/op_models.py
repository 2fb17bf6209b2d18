"""Small models of every kind, whose operators are captured and rebuilt in tests."""

from __future__ import annotations

import torch
from torch import nn


class ConvNet(nn.Module):
    """Convolutions, norms, pooling, a residual sum, a concatenation, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.group_norm = nn.GroupNorm(2, 16)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.drop = nn.Dropout(0.1)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(16, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.pool(torch.relu(self.norm(self.stem(images))))
        hidden = hidden + nn.functional.silu(self.depthwise(hidden))
        hidden = self.up(self.group_norm(torch.cat([hidden, hidden.flip(-1)], 1)))
        return self.head(self.drop(self.average(hidden).flatten(1)))


class Language(nn.Module):
    """Embeddings, attention with a mask, layer norms, a tied head."""

    def __init__(self, words: int = 50, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(12, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, batch_first=True, activation="gelu", norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits for each place."""
        length = tokens.shape[1]
        hidden = self.words(tokens) + self.places.weight[torch.arange(length, device=tokens.device)]
        mask = torch.triu(torch.full((length, length), float("-inf"), device=tokens.device), 1)
        return nn.functional.linear(self.norm(self.body(hidden, mask)), self.words.weight)


class Recurrent(nn.Module):
    """An LSTM over embeddings, and the last place picked by index."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        states, _ = self.lstm(self.words(tokens))
        rows = torch.arange(len(tokens), device=tokens.device)
        return self.head(states[rows, torch.full_like(rows, tokens.shape[1] - 1)])


def conv_net() -> nn.Module:
    """Return a model of images."""
    return ConvNet()


def language() -> nn.Module:
    """Return a model of words."""
    return Language()


def recurrent() -> nn.Module:
    """Return a model of sequences."""
    return Recurrent()
