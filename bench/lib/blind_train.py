"""A dozen trainings with cuDNN's layers that no rule was made with, for bench/estimate/blind.py: NAME as argument."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

STEPS = 4


class Last(nn.Module):
    """The output of a recurrent layer without its state, and a linear layer."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer = layer
        self.out = nn.Linear(width, 32)

    def forward(self, data: torch.Tensor) -> Any:
        """Return the scores."""
        return self.out(self.layer(data)[0])


def _block(kind: type[nn.Module], norm: type[nn.Module], *sizes: int, **how: Any) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [kind(before, after, **how), norm(after), nn.ReLU()]
    return nn.Sequential(*layers)


def _depthwise(width: int, kernel: int) -> nn.Sequential:
    deep = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width)
    return nn.Sequential(deep, nn.BatchNorm2d(width), nn.SiLU(), nn.Conv2d(width, width, 1))


def _images(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*shape, device="cuda")


BUILD: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], str]] = {
    "volumes": (
        lambda: _block(nn.Conv3d, nn.BatchNorm3d, 1, 24, 48, 96, kernel_size=3, stride=2),
        _images(4, 1, 64, 96, 96),
        "",
    ),
    "volumes-half": (
        lambda: _block(nn.Conv3d, nn.BatchNorm3d, 2, 32, 64, kernel_size=(3, 5, 5)),
        _images(2, 2, 24, 80, 80),
        "bfloat16",
    ),
    "dilated": (
        lambda: _block(nn.Conv2d, nn.BatchNorm2d, 3, 48, 96, 96, kernel_size=3, dilation=4, padding=4),
        _images(8, 3, 160, 160),
        "",
    ),
    "dilated-1d": (
        lambda: _block(nn.Conv1d, nn.BatchNorm1d, 40, 192, 192, 192, kernel_size=7, dilation=8),
        _images(16, 40, 4000),
        "float16",
    ),
    "grouped": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 96, 3, 2), _block(nn.Conv2d, nn.BatchNorm2d, 96, 96, 96, kernel_size=5, groups=6)
        ),
        _images(16, 3, 192, 192),
        "",
    ),
    "transposed": (
        lambda: _block(nn.ConvTranspose2d, nn.BatchNorm2d, 160, 80, 40, 20, kernel_size=4, stride=2, padding=1),
        _images(16, 160, 20, 20),
        "",
    ),
    "transposed-3d": (
        lambda: _block(nn.ConvTranspose3d, nn.BatchNorm3d, 64, 32, 16, kernel_size=2, stride=2),
        _images(4, 64, 12, 24, 24),
        "bfloat16",
    ),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(3, 72, 4, 4), _depthwise(72, 9), _depthwise(72, 5)),
        _images(24, 3, 256, 256),
        "bfloat16",
    ),
    "gru": (
        lambda: Last(nn.GRU(80, 384, 3, bidirectional=True, batch_first=True, dropout=0.1), 768),
        _images(24, 300, 80),
        "",
    ),
    "gru-half": (
        lambda: Last(nn.GRU(96, 512, 1), 512),
        _images(250, 32, 96),
        "float16",
    ),
    "lstm-projected": (
        lambda: Last(nn.LSTM(120, 640, 2, proj_size=160), 160),
        _images(200, 24, 120),
        "",
    ),
    "lstm-bidirectional": (
        lambda: Last(nn.LSTM(64, 320, 4, bidirectional=True, batch_first=True), 640),
        _images(40, 150, 64),
        "bfloat16",
    ),
}  # fmt: skip
"""Name -> model, inputs, and the dtype of autocast."""


def main() -> None:
    """Train one of them, and print the allocator's peaks."""
    build, draw, half = BUILD[sys.argv[1]]
    model = build().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=getattr(torch, half or "bfloat16"), enabled=bool(half)):
            loss = model(draw()).float().pow(2).mean()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    peaks = {"allocated_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved()}
    print(json.dumps(peaks))


if __name__ == "__main__":
    main()
