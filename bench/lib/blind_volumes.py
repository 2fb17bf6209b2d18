"""Nets with 3-d convolutions, for bench/lib/blind_convolutions.py: three for videos and one for volumes."""

from __future__ import annotations

from itertools import pairwise

import torch
from blind_parts import Excited, Residual
from torch import nn
from torch.nn import functional as F


def _conv3d(
    before: int, after: int, kernel: tuple[int, int, int], stride: int | tuple[int, int, int] = 1, groups: int = 1
) -> nn.Sequential:
    """Return a 3-d convolution without bias that keeps sizes at stride 1, and its norm."""
    padding = tuple(size // 2 for size in kernel)
    conv = nn.Conv3d(before, after, kernel, stride, padding, groups=groups, bias=False)  # type: ignore[arg-type]
    return nn.Sequential(conv, nn.BatchNorm3d(after))


def _factorised(before: int, after: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution over space and one over time with as many parameters as one over both, as in R(2+1)D."""
    middle = before * after * 27 // (before * 9 + after * 3)
    space = _conv3d(before, middle, (1, 3, 3), (1, stride, stride))
    return [space, nn.ReLU(), _conv3d(middle, after, (3, 1, 1), (stride, 1, 1))]


def factorised_video() -> nn.Module:
    """Return a net with residual blocks of factorised convolutions."""
    layers: list[nn.Module] = [_conv3d(3, 45, (1, 7, 7), (1, 2, 2)), nn.ReLU(), _conv3d(45, 64, (3, 1, 1)), nn.ReLU()]
    for before, after in pairwise((64, 64, 128, 256)):
        stride = 1 if before == after else 2
        shortcut = _conv3d(before, after, (1, 1, 1), stride) if before != after else None
        first = nn.Sequential(*_factorised(before, after, stride), nn.ReLU(), *_factorised(after, after))
        second = nn.Sequential(*_factorised(after, after), nn.ReLU(), *_factorised(after, after))
        layers += [Residual(first, shortcut), Residual(second)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(256, 174))


def _pathway(before: int, width: int, depth: int, stride: int, in_time: int) -> nn.Sequential:
    """Return bottlenecks of which the first convolution has ``in_time`` frames."""
    blocks: list[nn.Module] = []
    for i in range(depth):
        inputs, step = (before, stride) if i == 0 else (4 * width, 1)
        branch = nn.Sequential(
            _conv3d(inputs, width, (in_time, 1, 1)), nn.ReLU(),
            _conv3d(width, width, (1, 3, 3), (1, step, step)), nn.ReLU(),
            _conv3d(width, 4 * width, (1, 1, 1)),
        )  # fmt: skip
        shortcut = _conv3d(inputs, 4 * width, (1, 1, 1), (1, step, step)) if i == 0 else None
        blocks.append(Residual(branch, shortcut))
    return nn.Sequential(*blocks)


class TwoPaths(nn.Module):
    """A wide pathway for every eighth frame and a narrow one for all of them, as in SlowFast."""

    def __init__(self) -> None:
        super().__init__()
        pool = nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1))
        self.slow_stem = nn.Sequential(_conv3d(3, 64, (1, 7, 7), (1, 2, 2)), nn.ReLU(), pool)
        self.fast_stem = nn.Sequential(_conv3d(3, 8, (5, 7, 7), (1, 2, 2)), nn.ReLU(), pool)
        self.slow = nn.ModuleList([_pathway(64 + 16, 64, 3, 1, 1), _pathway(256 + 64, 128, 4, 2, 1)])
        self.fast = nn.ModuleList([_pathway(8, 8, 3, 1, 3), _pathway(32, 16, 4, 2, 3)])
        self.lateral = nn.ModuleList(
            nn.Conv3d(width, 2 * width, (5, 1, 1), (8, 1, 1), (2, 0, 0), bias=False) for width in (8, 32)
        )
        self.out = nn.Linear(512 + 64, 400)

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        """Return the scores of ``clips``, ``[batch, 3, frames, height, width]``."""
        slow, fast = self.slow_stem(clips[:, :, ::8]), self.fast_stem(clips)
        for slow_stage, fast_stage, lateral in zip(self.slow, self.fast, self.lateral, strict=True):
            slow = slow_stage(torch.cat([slow, lateral(fast)], 1))
            fast = fast_stage(fast)
        return self.out(torch.cat([slow.mean((2, 3, 4)), fast.mean((2, 3, 4))], 1))  # type: ignore[no-any-return]


def video_depthwise() -> nn.Module:
    """Return a net whose convolutions over time and space are depthwise, as in X3D."""
    layers: list[nn.Module] = [nn.Conv3d(3, 24, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False)]
    layers += [_conv3d(24, 24, (5, 1, 1), groups=24), nn.ReLU()]
    for before, after in pairwise((24, 24, 48, 96)):
        for i in range(3):
            inputs, step = (before, (1, 2, 2)) if i == 0 else (after, (1, 1, 1))
            inner = 9 * inputs // 4 // 8 * 8
            branch = nn.Sequential(
                _conv3d(inputs, inner, (1, 1, 1)), nn.ReLU(), _conv3d(inner, inner, (3, 3, 3), step, inner),
                Excited(inner, nn.Conv3d), nn.SiLU(), _conv3d(inner, after, (1, 1, 1)),
            )  # fmt: skip
            layers.append(Residual(branch, _conv3d(inputs, after, (1, 1, 1), step) if i == 0 else None))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(96, 400))


class Vnet(nn.Module):
    """Residual stages of 5 x 5 x 5 convolutions with PReLU, down and up by strides of 2, as in V-Net."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.stem = nn.Conv3d(1, widths[0], 5, padding=2)
        self.encoders = nn.ModuleList(self.stage(width, i + 1) for i, width in enumerate(widths))
        self.downs = nn.ModuleList(nn.Conv3d(before, after, 2, 2) for before, after in pairwise(widths))
        self.ups = nn.ModuleList(nn.ConvTranspose3d(after, before, 2, 2) for before, after in pairwise(widths))
        self.joins = nn.ModuleList(nn.Conv3d(2 * width, width, 5, padding=2) for width in widths[:-1])
        self.out = nn.Conv3d(widths[0], 2, 1)

    @staticmethod
    def stage(width: int, depth: int) -> Residual:
        """Return ``depth`` convolutions with a shortcut."""
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Conv3d(width, width, 5, padding=2), nn.BatchNorm3d(width), nn.PReLU(width)]
        return Residual(nn.Sequential(*layers))

    def forward(self, volume: torch.Tensor) -> torch.Tensor:
        """Return two scores for each voxel."""
        data = self.encoders[0](self.stem(volume))
        skips = []
        for down, encoder in zip(self.downs, self.encoders[1:], strict=True):
            skips.append(data)
            data = encoder(down(data))
        for up, join, skip in zip(reversed(self.ups), reversed(self.joins), reversed(skips), strict=True):
            data = F.relu(join(torch.cat([up(data), skip], 1)))
        return self.out(data)  # type: ignore[no-any-return]
