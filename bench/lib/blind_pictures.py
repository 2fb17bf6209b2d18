"""Six convolutional nets of kinds that no earlier set has, for the set "varied" of bench/lib/blind_train.py."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from blind_parts import Residual, Training, channels_last, images
from torch import nn
from torch.nn import functional as F


class Octave(nn.Module):
    """A convolution over two resolutions that exchange channels, as in OctConv."""

    def __init__(self, before: tuple[int, int], after: tuple[int, int], stride: int = 1) -> None:
        super().__init__()
        (high, low), (more_high, more_low) = before, after
        how: dict[str, Any] = {"padding": 1, "bias": False}
        self.stride = stride
        self.high_to_high = nn.Conv2d(high, more_high, 3, **how)
        self.high_to_low = nn.Conv2d(high, more_low, 3, **how)
        self.low_to_high = nn.Conv2d(low, more_high, 3, **how)
        self.low_to_low = nn.Conv2d(low, more_low, 3, **how)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in after)

    def forward(self, both: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the channels of both resolutions."""
        high, low = both
        if self.stride == 2:
            high, low = F.avg_pool2d(high, 2), F.avg_pool2d(low, 2)
        above = self.high_to_high(high) + F.interpolate(self.low_to_high(low), scale_factor=2, mode="nearest")
        below = self.low_to_low(low) + self.high_to_low(F.avg_pool2d(high, 2))
        return F.relu(self.norms[0](above)), F.relu(self.norms[1](below))


class Octaves(nn.Module):
    """A classifier of octave convolutions."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 5, 2, 2)
        pairs = [((a, a // 2), (b, b // 2), 2) for a, b in pairwise(widths)]
        layers = [one for a, b, step in pairs for one in (Octave(a, b, step), Octave(b, b))]
        self.layers = nn.ModuleList(layers)
        self.entry = nn.Conv2d(widths[0], widths[0] // 2, 1)
        self.out = nn.Linear(widths[-1] + widths[-1] // 2, 365)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return the scores of each picture."""
        high = self.stem(pictures)
        both = (high, self.entry(F.avg_pool2d(high, 2)))
        for layer in self.layers:
            both = layer(both)
        return self.out(torch.cat([one.mean((2, 3)) for one in both], 1))  # type: ignore[no-any-return]


class Mixture(nn.Module):
    """A convolution whose weights are a mixture that each image chooses, as in CondConv: one group for each image."""

    def __init__(self, before: int, after: int, kernel: int, experts: int, stride: int = 1) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(experts, after * before * kernel * kernel) / (before * kernel))
        self.routing = nn.Linear(before, experts)
        self.sizes, self.stride = (after, before, kernel), stride
        self.norm = nn.BatchNorm2d(after)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return the channels of each image."""
        (after, before, kernel), count = self.sizes, data.shape[0]
        weight = self.routing(data.mean((2, 3))).sigmoid() @ self.weights
        flat = data.reshape(1, count * before, *data.shape[2:])
        made = F.conv2d(
            flat, weight.view(count * after, before, kernel, kernel), None, self.stride, kernel // 2, 1, count
        )
        return F.silu(self.norm(made.view(count, after, *made.shape[2:])))


def _mixtures(*widths: int) -> nn.Sequential:
    """Return a classifier of mixtures of convolutions."""
    stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 2, 1), nn.BatchNorm2d(widths[0]), nn.SiLU())
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [Mixture(before, after, 3, 4, 2), Mixture(after, after, 5, 4), Mixture(after, 2 * after, 1, 4)]
        layers += [Mixture(2 * after, after, 1, 4)]
    return nn.Sequential(stem, *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 200))


class Receptive(nn.Module):
    """Residual dilated convolutions over sounds, with several kernels side by side, as in HiFi-GAN."""

    def __init__(self, width: int, *kernels: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(width, width, k, dilation=d, padding=d * (k // 2)) for d in (1, 3, 5))
            for k in kernels
        )

    def forward(self, sounds: torch.Tensor) -> torch.Tensor:
        """Return the mean of all branches."""
        total = torch.zeros_like(sounds)
        for branch in self.branches:
            data = sounds
            for layer in branch:  # type: ignore[attr-defined]
                data = data + layer(F.leaky_relu(data, 0.1))
            total = total + data
        return total / len(self.branches)


PERIODS = (2, 3, 5)


class Vocoder(nn.Module):
    """Sounds of a spectrogram, and what two critics of them say: one of periods and one with grouped convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.entry = nn.Conv1d(80, width, 7, padding=3)
        rates = ((8, 16), (8, 16), (2, 4), (2, 4))
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(width >> i, width >> (i + 1), k, r, (k - r) // 2) for i, (r, k) in enumerate(rates)
        )
        self.fields = nn.ModuleList(Receptive(width >> (i + 1), 3, 7, 11) for i in range(len(rates)))
        self.exit = nn.Conv1d(width >> len(rates), 1, 7, padding=3)
        self.periods = nn.ModuleList(self.critic(1, 32, 128, 512) for _ in PERIODS)
        sizes = ((1, 64, 15, 1, 1), (64, 128, 41, 2, 4), (128, 256, 41, 4, 16), (256, 512, 41, 4, 16))
        self.scale = nn.Sequential(
            *(nn.Sequential(nn.Conv1d(a, b, k, s, k // 2, groups=g), nn.LeakyReLU(0.1)) for a, b, k, s, g in sizes),
            nn.Conv1d(512, 1, 3, padding=1),
        )

    @staticmethod
    def critic(*widths: int) -> nn.Sequential:
        """Return convolutions over one axis of images."""
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Conv2d(before, after, (5, 1), (3, 1), (2, 0)), nn.LeakyReLU(0.1)]
        return nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, (3, 1), 1, (1, 0)))

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Return the scores of the sounds that are made of ``frames``, ``[batch, 80, frames]``."""
        data = self.entry(frames)
        for up, field in zip(self.ups, self.fields, strict=True):
            data = field(up(F.leaky_relu(data, 0.1)))
        sounds = self.exit(F.leaky_relu(data)).tanh()
        scores = [self.scale(sounds).flatten(1)]
        for period, critic in zip(PERIODS, self.periods, strict=True):
            whole = F.pad(sounds, (0, -sounds.shape[2] % period))
            scores.append(critic(whole.view(whole.shape[0], 1, -1, period)).flatten(1))
        return torch.cat(scores, 1)


class Organs(nn.Module):
    """Anisotropic stages down and up with instance norms, and scores at several depths, as in nnU-Net."""

    def __init__(self, classes: int, *widths: int) -> None:
        super().__init__()
        kernels = ((1, 3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3))
        strides = ((1, 1, 1), (1, 2, 2), (2, 2, 2), (2, 2, 2))
        self.downs = nn.ModuleList()
        for (before, after), kernel, stride in zip(pairwise((1, *widths)), kernels, strides, strict=True):
            self.downs.append(nn.Sequential(self.one(before, after, kernel, stride), self.one(after, after, kernel)))
        deep = list(zip(pairwise(widths), kernels, strides[1:], strict=False))[::-1]
        self.ups = nn.ModuleList(nn.ConvTranspose3d(b, a, stride, stride) for (a, b), _, stride in deep)
        self.joins = nn.ModuleList(
            nn.Sequential(self.one(2 * a, a, kernel), self.one(a, a, kernel)) for (a, _), kernel, _ in deep
        )
        self.scores = nn.ModuleList(nn.Conv3d(a, classes, 1) for (a, _), *_ in deep)

    @staticmethod
    def one(before: int, after: int, kernel: tuple[int, ...], stride: tuple[int, ...] = (1, 1, 1)) -> nn.Sequential:
        """Return a convolution, its norm and its activation."""
        conv = nn.Conv3d(before, after, kernel, stride, tuple(k // 2 for k in kernel))  # type: ignore[arg-type]
        return nn.Sequential(conv, nn.InstanceNorm3d(after, affine=True), nn.LeakyReLU(0.01))

    def forward(self, volume: torch.Tensor) -> torch.Tensor:
        """Return the scores of all depths, in one row for each volume."""
        skips, found, data = [], [], volume
        for down in self.downs:
            data = down(data)
            skips.append(data)
        for up, join, score, skip in zip(self.ups, self.joins, self.scores, reversed(skips[:-1]), strict=True):
            data = join(torch.cat([up(data), skip], 1))
            found.append(score(data).flatten(1))
        return torch.cat(found, 1)


class Stereo(nn.Module):
    """Disparities of two images by a volume of shifted channels and an hourglass of 3-d layers, as in PSMNet."""

    def __init__(self, width: int, disparities: int) -> None:
        super().__init__()
        self.disparities = disparities
        first = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU())
        blocks = [Residual(self.two(width, d)) for d in (1, 1, 2, 4)]
        self.views = nn.Sequential(first, nn.Conv2d(width, width, 3, 2, 1), *blocks, nn.Conv2d(width, width // 2, 1))
        self.entry = self.layer(width, width, 1)
        self.downs = nn.ModuleList([self.layer(width, 2 * width, 2), self.layer(2 * width, 2 * width, 2)])
        self.same = self.layer(2 * width, 2 * width, 1)
        self.ups = nn.ModuleList(
            nn.ConvTranspose3d(2 * width, after, 3, 2, 1, output_padding=1, bias=False) for after in (2 * width, width)
        )
        self.out = nn.Conv3d(width, 1, 3, padding=1, bias=False)

    @staticmethod
    def two(width: int, dilation: int) -> nn.Sequential:
        """Return two 2-d convolutions with norms."""
        first, second = (nn.Conv2d(width, width, 3, 1, dilation, dilation, bias=False) for _ in range(2))
        return nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), second, nn.BatchNorm2d(width))

    @staticmethod
    def layer(before: int, after: int, stride: int) -> nn.Sequential:
        """Return a 3-d convolution with a norm."""
        return nn.Sequential(
            nn.Conv3d(before, after, 3, stride, 1, bias=False), nn.BatchNorm3d(after), nn.ReLU()
        )  # fmt: skip

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        """Return a disparity for each pixel of ``pairs``, ``[batch, 2, 3, height, width]``."""
        left, right = self.views(pairs[:, 0]), self.views(pairs[:, 1])
        shifted = [F.pad(right, (d, 0))[..., : right.shape[-1]] for d in range(self.disparities)]
        cost = torch.stack([torch.cat([left, one], 1) for one in shifted], 2)
        entry = self.entry(cost)
        half = self.downs[0](entry)
        data = F.relu(self.ups[0](self.same(self.downs[1](half))) + half)
        scores = self.out(F.relu(self.ups[1](data) + entry)).squeeze(1)
        large = F.interpolate(scores, scale_factor=4, mode="bilinear", align_corners=False)
        places = torch.arange(self.disparities, device=large.device, dtype=large.dtype)
        return (large.softmax(1) * places.view(1, -1, 1, 1)).sum(1)


class Gathered(nn.Module):
    """A convolution over places that a convolution chooses, as in deformable convolutions."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.offsets = nn.Conv2d(before, 27, 3, stride, 1)
        self.mix = nn.Conv2d(9 * before, after, 1, bias=False)
        self.norm = nn.GroupNorm(8, after)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return the channels of each place."""
        offsets = self.offsets(data)
        lines = [torch.linspace(-1, 1, size, device=data.device) for size in offsets.shape[2:]]
        grid = torch.stack(torch.meshgrid(*lines, indexing="ij")[::-1], -1)
        taken = []
        for place in range(9):
            moved = grid + offsets[:, 2 * place : 2 * place + 2].permute(0, 2, 3, 1).tanh() / 4
            one = F.grid_sample(data, moved.to(data.dtype), align_corners=True)
            taken.append(one * offsets[:, 18 + place : 19 + place].sigmoid())
        return F.relu(self.norm(self.mix(torch.cat(taken, 1))))


def _gathered() -> nn.Sequential:
    """Return a net for crowds: deformable layers between strided ones, in channels_last."""
    stem = nn.Sequential(nn.Conv2d(3, 48, 7, 4, 3), nn.GroupNorm(8, 48), nn.ReLU())
    layers = [Gathered(48, 96, 1), Gathered(96, 160, 2), nn.Conv2d(160, 160, 3, padding=2, dilation=2), nn.ReLU()]
    layers += [Gathered(160, 160, 1), nn.ConvTranspose2d(160, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 1, 1)]
    return nn.Sequential(stem, *layers).to(memory_format=torch.channels_last)


PICTURES: dict[str, Training] = {
    "octaves": (lambda: Octaves(64, 128, 256, 448), images(40, 3, 224, 224), ""),
    "mixtures": (lambda: _mixtures(32, 72, 144, 288), images(28, 3, 200, 200), "bfloat16"),
    "vocoder": (lambda: Vocoder(384), images(12, 80, 64), ""),
    "organs": (lambda: Organs(5, 24, 48, 96, 192), images(2, 1, 32, 160, 160), "float16"),
    "stereo": (lambda: Stereo(32, 24), images(3, 2, 3, 160, 320), ""),
    "gathered": (_gathered, channels_last(14, 3, 288, 352), ""),
}
