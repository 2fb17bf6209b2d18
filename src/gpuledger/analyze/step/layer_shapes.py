"""Convolutions of two networks for time logs without shapes: VGG-19 and AlexNet, on an image of 256 x 256."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuledger.analyze.step.time_logs import TimeLog

IMAGE_SIDE = 256


@dataclass(frozen=True)
class ConvShape:
    """One convolution: channels in and out; kernel, stride, padding and input side are equal in both dimensions."""

    channels: int
    filters: int
    kernel: int
    stride: int
    padding: int
    side: int

    @property
    def parameters(self) -> int:
        """Return the number of weights."""
        return self.channels * self.filters * self.kernel**2

    @property
    def input_values(self) -> int:
        """Return the number of input values per image."""
        return self.channels * self.side**2

    @property
    def channels_text(self) -> str:
        """Return its channels as text, ``64→128``."""
        return f"{self.channels}→{self.filters}"

    @property
    def kernel_text(self) -> str:
        """Return its kernel as text, ``3×3``, with its stride if that is not 1."""
        return f"{self.kernel}×{self.kernel}" + (f" /{self.stride}" if self.stride != 1 else "")


_VGG_FILTERS = (64, 64, 128, 128, *[256] * 4, *[512] * 8)
_VGG_SIDES = (256, 256, 128, 128, *[64] * 4, *[32] * 4, *[16] * 4)
_ALEXNET = (
    ConvShape(3, 64, 11, 4, 2, IMAGE_SIDE),
    ConvShape(64, 192, 5, 1, 2, 31),
    ConvShape(192, 384, 3, 1, 1, 15),
    ConvShape(384, 256, 3, 1, 1, 15),
    ConvShape(256, 256, 3, 1, 1, 15),
)
_VGG19 = tuple(
    ConvShape(channels, filters, 3, 1, 1, side)
    for channels, filters, side in zip((3, *_VGG_FILTERS[:-1]), _VGG_FILTERS, _VGG_SIDES, strict=True)
)
NETWORKS = {"VGG": ("VGG-19", _VGG19), "ALEX": ("AlexNet", _ALEXNET)}
"""Text in a log's name -> the network's name, and its convolutions in order."""


def known_shapes(log: TimeLog) -> tuple[str, tuple[ConvShape, ...]]:
    """Return the network's name and convolutions for a log; ("", ()) if name and layers of the log are of neither."""
    layers = log.layer_s.shape[3]
    names = " ".join(re.split(r"[/\\]", name)[-1].upper() for name in (log.name, *log.files))
    for word, (network, shapes) in NETWORKS.items():
        if word in names and layers == len(shapes):
            return network, shapes
    return "", ()
