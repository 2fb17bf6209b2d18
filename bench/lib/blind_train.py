"""Dozens of trainings with cuDNN layers that no rule was made with, for bench/estimate/blind.py: NAME as argument."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from blind_convolutions import CONVOLUTIONS
from blind_parts import Training, block, images
from blind_pictures import PICTURES
from blind_sequences import SEQUENCES
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


def _depthwise(width: int, kernel: int) -> nn.Sequential:
    deep = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width)
    return nn.Sequential(deep, nn.BatchNorm2d(width), nn.SiLU(), nn.Conv2d(width, width, 1))


class ConvLstm(nn.Module):
    """A recurrent cell whose gates are one convolution, over images in time."""

    def __init__(self, channels: int, hidden: int, kernel: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Conv2d(channels + hidden, 4 * hidden, kernel, padding=kernel // 2)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Return the last hidden images of ``frames``, ``[time, batch, channels, height, width]``."""
        state = hidden = frames.new_zeros(frames.shape[1], self.hidden, *frames.shape[3:])
        for frame in frames:
            entry, forget, out, update = self.gates(torch.cat([frame, hidden], 1)).chunk(4, 1)
            state = forget.sigmoid() * state + entry.sigmoid() * update.tanh()
            hidden = out.sigmoid() * state.tanh()
        return hidden


class Unet3d(nn.Module):
    """One level of a 3-d U-Net: down, up by a transposed convolution, and a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = block(nn.Conv3d, nn.InstanceNorm3d, 1, width, kernel_size=3, padding=1)
        self.down = block(nn.Conv3d, nn.InstanceNorm3d, width, 2 * width, kernel_size=3, stride=2, padding=1)
        self.up = nn.ConvTranspose3d(2 * width, width, 2, 2)
        self.last = nn.Conv3d(2 * width, 4, 1)

    def forward(self, volume: torch.Tensor) -> Any:
        """Return four scores for each voxel."""
        first = self.first(volume)
        return self.last(torch.cat([first, self.up(self.down(first))], 1))


class Packed(nn.Module):
    """A recurrent layer over a packed batch of ragged sequences."""

    def __init__(self, layer: nn.Module, longest: int, batch: int) -> None:
        super().__init__()
        self.layer = layer
        self.lengths = [longest - (7 * one) % (longest // 2) for one in range(batch)]

    def forward(self, data: torch.Tensor) -> Any:
        """Return the last states of each sequence."""
        packed = nn.utils.rnn.pack_padded_sequence(data, self.lengths, batch_first=True, enforce_sorted=False)
        return self.layer(packed)[1]


class Cells(nn.Module):
    """A recurrent cell that is called for each time, and a linear layer."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(inputs, hidden)
        self.out = nn.Linear(hidden, 32)

    def forward(self, data: torch.Tensor) -> Any:
        """Return the scores for each time of ``data``, ``[time, batch, inputs]``."""
        state = data.new_zeros(data.shape[1], self.cell.hidden_size)
        states = []
        for one in data:
            state = self.cell(one, state)
            states.append(state)
        return self.out(torch.stack(states))


class Frozen(nn.Module):
    """A recurrent layer that is not trained, below one that is."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.below = nn.LSTM(inputs, hidden, 2, batch_first=True).requires_grad_(False)
        self.above = nn.LSTM(hidden, hidden, 1, batch_first=True)

    def forward(self, data: torch.Tensor) -> Any:
        """Return the states of the upper layer."""
        return self.above(self.below(data)[0])[0]


class Attended(nn.Module):
    """A recurrent encoder and attention over its states."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.layer = nn.LSTM(inputs, hidden, bidirectional=True, batch_first=True)
        self.attention = nn.MultiheadAttention(2 * hidden, 8, batch_first=True)

    def forward(self, data: torch.Tensor) -> Any:
        """Return the attended states."""
        states = self.layer(data)[0]
        return self.attention(states, states, states, need_weights=False)[0]


class Pyramid(nn.Module):
    """Convolutions with several dilations side by side, as in DeepLab."""

    def __init__(self, channels: int, width: int, *dilations: int) -> None:
        super().__init__()
        self.stem = block(nn.Conv2d, nn.BatchNorm2d, 3, channels, kernel_size=3, stride=2, padding=1)
        self.branches = nn.ModuleList(
            block(nn.Conv2d, nn.BatchNorm2d, channels, width, kernel_size=3, dilation=one, padding=one)
            for one in dilations
        )

    def forward(self, images: torch.Tensor) -> Any:
        """Return the channels of all branches."""
        data = self.stem(images)
        return torch.cat([branch(data) for branch in self.branches], 1)


class Unet2d(nn.Module):
    """Two levels of a U-Net with group norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        how = {"kernel_size": 3, "padding": 1}
        self.first = block(nn.Conv2d, _groups, 3, width, width, **how)
        self.down = block(nn.Conv2d, _groups, width, 2 * width, **how, stride=2)
        self.lower = block(nn.Conv2d, _groups, 2 * width, 2 * width, **how)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.last = block(nn.Conv2d, _groups, 2 * width, width, **how)

    def forward(self, images: torch.Tensor) -> Any:
        """Return the channels of each pixel."""
        first = self.first(images)
        return self.last(torch.cat([first, self.up(self.lower(self.down(first)))], 1))


class Speech(nn.Module):
    """Convolutions over a spectrogram, and recurrent layers over its frames, as in Deep Speech 2."""

    def __init__(self) -> None:
        super().__init__()
        self.images = block(nn.Conv2d, nn.BatchNorm2d, 1, 32, 32, kernel_size=(41, 11), stride=(2, 2), padding=(20, 5))
        self.frames = nn.GRU(32 * 40, 400, 3, bidirectional=True)

    def forward(self, sounds: torch.Tensor) -> Any:
        """Return the outputs of each frame of ``sounds``, ``[batch, 1, 160, frames]``."""
        return self.frames(self.images(sounds).flatten(1, 2).permute(2, 0, 1))[0]


def _groups(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(8, width)


class Lines(nn.Module):
    """Convolutions over an image of text, and a recurrent layer over its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.images = block(nn.Conv2d, nn.BatchNorm2d, 1, 48, 96, 192, kernel_size=3, stride=(2, 1), padding=1)
        self.columns = nn.LSTM(192 * 4, 256, 2, bidirectional=True)

    def forward(self, image: torch.Tensor) -> Any:
        """Return the outputs of each column."""
        return self.columns(self.images(image).flatten(1, 2).permute(2, 0, 1))[0]


def _temporal(width: int, *dilations: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv1d(80, width, 1)]
    for one in dilations:
        conv = nn.Conv1d(width, width, 5, dilation=one, padding=4 * one)
        layers += [nn.utils.parametrizations.weight_norm(conv), nn.GELU()]
    return nn.Sequential(*layers)


LAYERS: dict[str, Training] = {
    "volumes": (
        lambda: block(nn.Conv3d, nn.BatchNorm3d, 1, 24, 48, 96, kernel_size=3, stride=2),
        images(4, 1, 64, 96, 96),
        "",
    ),
    "volumes-half": (
        lambda: block(nn.Conv3d, nn.BatchNorm3d, 2, 32, 64, kernel_size=(3, 5, 5)),
        images(2, 2, 24, 80, 80),
        "bfloat16",
    ),
    "dilated": (
        lambda: block(nn.Conv2d, nn.BatchNorm2d, 3, 48, 96, 96, kernel_size=3, dilation=4, padding=4),
        images(8, 3, 160, 160),
        "",
    ),
    "dilated-1d": (
        lambda: block(nn.Conv1d, nn.BatchNorm1d, 40, 192, 192, 192, kernel_size=7, dilation=8),
        images(16, 40, 4000),
        "float16",
    ),
    "grouped": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 96, 3, 2), block(nn.Conv2d, nn.BatchNorm2d, 96, 96, 96, kernel_size=5, groups=6)
        ),
        images(16, 3, 192, 192),
        "",
    ),
    "transposed": (
        lambda: block(nn.ConvTranspose2d, nn.BatchNorm2d, 160, 80, 40, 20, kernel_size=4, stride=2, padding=1),
        images(16, 160, 20, 20),
        "",
    ),
    "transposed-3d": (
        lambda: block(nn.ConvTranspose3d, nn.BatchNorm3d, 64, 32, 16, kernel_size=2, stride=2),
        images(4, 64, 12, 24, 24),
        "bfloat16",
    ),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(3, 72, 4, 4), _depthwise(72, 9), _depthwise(72, 5)),
        images(24, 3, 256, 256),
        "bfloat16",
    ),
    "gru": (
        lambda: Last(nn.GRU(80, 384, 3, bidirectional=True, batch_first=True, dropout=0.1), 768),
        images(24, 300, 80),
        "",
    ),
    "gru-half": (
        lambda: Last(nn.GRU(96, 512, 1), 512),
        images(250, 32, 96),
        "float16",
    ),
    "lstm-projected": (
        lambda: Last(nn.LSTM(120, 640, 2, proj_size=160), 160),
        images(200, 24, 120),
        "",
    ),
    "lstm-bidirectional": (
        lambda: Last(nn.LSTM(64, 320, 4, bidirectional=True, batch_first=True), 640),
        images(40, 150, 64),
        "bfloat16",
    ),
}  # fmt: skip

NETS: dict[str, Training] = {
    "conv-lstm": (lambda: ConvLstm(3, 48, 5), images(8, 8, 3, 96, 96), ""),
    "large-kernel": (
        lambda: nn.Sequential(nn.Conv2d(3, 128, 4, 4), _depthwise(128, 31), _depthwise(128, 31)),
        images(16, 3, 224, 224),
        "bfloat16",
    ),
    "asymmetric": (
        lambda: nn.Sequential(
            block(nn.Conv2d, nn.BatchNorm2d, 1, 64, 64, kernel_size=(1, 9), stride=(1, 2)),
            block(nn.Conv2d, nn.BatchNorm2d, 64, 128, kernel_size=(9, 1), stride=(2, 1)),
        ),
        images(12, 1, 128, 600),
        "",
    ),
    "unet-3d": (lambda: Unet3d(32), images(2, 1, 64, 64, 64), ""),
    "transposed-grouped": (
        lambda: block(nn.ConvTranspose2d, nn.BatchNorm2d, 256, 128, 64, kernel_size=3, stride=2, groups=4),
        images(8, 256, 32, 32),
        "float16",
    ),
    "temporal": (lambda: _temporal(256, 1, 2, 4, 8, 16), images(8, 80, 1200), ""),
    "channels-last": (
        lambda: block(nn.Conv2d, nn.BatchNorm2d, 3, 64, 128, 256, kernel_size=3, stride=2, padding=1).to(
            memory_format=torch.channels_last
        ),
        lambda: torch.randn(32, 3, 192, 192, device="cuda").to(memory_format=torch.channels_last),
        "bfloat16",
    ),
    "pointwise": (
        lambda: block(nn.Conv2d, nn.BatchNorm2d, 64, 256, 64, 512, kernel_size=1),
        images(16, 64, 96, 96),
        "",
    ),
    "gru-packed": (
        lambda: Packed(nn.GRU(128, 320, 2, batch_first=True, dropout=0.2), 180, 40),
        images(40, 180, 128),
        "",
    ),
    "lstm-projected-half": (
        lambda: Last(nn.LSTM(96, 512, 2, proj_size=128, bidirectional=True), 256),
        images(160, 32, 96),
        "bfloat16",
    ),
    "rnn-tanh": (lambda: Last(nn.RNN(64, 448, 2, batch_first=True), 448), images(48, 220, 64), ""),
    "text-lines": (Lines, images(24, 1, 32, 320), "float16"),
}

MIXED: dict[str, Training] = {
    "gru-packed-bidirectional": (
        lambda: Packed(nn.GRU(96, 256, bidirectional=True, batch_first=True), 240, 32),
        images(32, 240, 96),
        "",
    ),
    "rnn-relu-half": (
        lambda: Last(nn.RNN(80, 512, 3, nonlinearity="relu", bidirectional=True), 1024),
        images(180, 40, 80),
        "float16",
    ),
    "lstm-deep": (
        lambda: Last(nn.LSTM(128, 288, 5, dropout=0.3, batch_first=True), 288),
        images(36, 128, 128),
        "",
    ),
    "gru-packed-half": (
        lambda: Packed(nn.GRU(64, 448, 3, batch_first=True, dropout=0.2), 140, 56),
        images(56, 140, 64),
        "bfloat16",
    ),
    "gru-cells": (lambda: Cells(160, 384), images(60, 96, 160), ""),
    "lstm-frozen": (lambda: Frozen(100, 416), images(48, 120, 100), ""),
    "lstm-attended": (lambda: Attended(72, 192), images(28, 256, 72), "bfloat16"),
    "volumes-strided": (
        lambda: block(nn.Conv3d, nn.BatchNorm3d, 3, 40, 80, 160, kernel_size=3, stride=(1, 2, 2), padding=1),
        images(3, 3, 12, 128, 128),
        "bfloat16",
    ),
    "dilated-pyramid": (lambda: Pyramid(96, 64, 1, 3, 6, 12), images(6, 3, 192, 192), ""),
    "unet-2d": (lambda: Unet2d(40), images(10, 3, 176, 176), "float16"),
    "speech": (Speech, images(12, 1, 160, 500), ""),
    "volumes-wide": (
        lambda: nn.Sequential(
            block(nn.Conv3d, nn.BatchNorm3d, 1, 20, 40, kernel_size=5, padding=2, stride=2),
            nn.ConvTranspose3d(40, 20, 4, 2, 1),
        ),
        images(2, 1, 80, 80, 80),
        "",
    ),
}

SETS = {
    "layers": LAYERS, "nets": NETS, "mixed": MIXED, "convolutions": CONVOLUTIONS, "varied": {**PICTURES, **SEQUENCES},
}  # fmt: skip
"""Name of a set -> its trainings."""


def main() -> None:
    """Train one of them, and print the allocator's peaks."""
    build, draw, half = next(trainings[sys.argv[1]] for trainings in SETS.values() if sys.argv[1] in trainings)
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
