"""VGG-19 with random weights of a fixed seed; the convolution is the caller's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

BLOCKS = ((1, 2), (2, 2), (4, 4), (8, 4), (8, 4))
"""Channels of a block in multiples of the first block's, and its convolutions."""
VGG19_WIDTH = 64
POOLED = 7
CLASSES = 1000

Convolve = Callable[["Layer", torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Layer:
    """One convolution or fully connected layer."""

    name: str
    weight: torch.Tensor
    bias: torch.Tensor


class VGG19:
    """The network; ``width`` is the number of channels of the first block, 64 in VGG-19."""

    def __init__(self, device: torch.device, width: int = VGG19_WIDTH, seed: int = 0) -> None:
        self.device = device
        self._generator = torch.Generator(device).manual_seed(seed)
        self.blocks: list[list[Layer]] = []
        channels = 3
        for block, (multiple, convolutions) in enumerate(BLOCKS, 1):
            self.blocks.append([])
            for number in range(1, convolutions + 1):
                shape = (multiple * width, channels, 3, 3)
                self.blocks[-1].append(self._make(f"conv{block}_{number}", *shape))
                channels = multiple * width
        hidden = VGG19_WIDTH * width
        self.classifier = [
            self._make("fc6", hidden, channels * POOLED**2),
            self._make("fc7", hidden, hidden),
            self._make("fc8", CLASSES, hidden),
        ]

    def _make(self, name: str, *shape: int) -> Layer:
        """Return a layer after He: the variance of activations stays about one through all layers."""
        weight = torch.empty(shape, device=self.device).normal_(generator=self._generator)
        bias = torch.empty(shape[0], device=self.device).normal_(std=0.01, generator=self._generator)
        return Layer(name, weight.mul_((2 / weight[0].numel()) ** 0.5), bias)

    @property
    def convolutions(self) -> list[Layer]:
        """The sixteen convolutions in order."""
        return [layer for block in self.blocks for layer in block]

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights and biases."""
        return sum(part.nbytes for layer in self.convolutions + self.classifier for part in (layer.weight, layer.bias))

    def make_images(self, count: int, size: int) -> torch.Tensor:
        """Return random images float32[count, 3, size, size]."""
        return torch.empty(count, 3, size, size, device=self.device).normal_(generator=self._generator)

    def forward(self, images: torch.Tensor, convolve: Convolve) -> torch.Tensor:
        """Return the logits float32[images, 1000]."""
        x = images
        for block in self.blocks:
            for layer in block:
                x = convolve(layer, x).add_(layer.bias[:, None, None]).relu_()
            x = functional.max_pool2d(x, 2)
        x = functional.adaptive_avg_pool2d(x, POOLED).flatten(1)
        for layer in self.classifier[:-1]:
            x = functional.linear(x, layer.weight, layer.bias).relu_()
        return functional.linear(x, self.classifier[-1].weight, self.classifier[-1].bias)
