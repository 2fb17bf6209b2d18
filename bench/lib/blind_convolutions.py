"""A dozen convolutional nets for videos, volumes, images and sounds: a set of bench/lib/blind_train.py."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from blind_parts import Excited, Residual, Training, block, channels_last, images
from blind_volumes import TwoPaths, Vnet, factorised_video, video_depthwise
from torch import nn
from torch.nn import functional as F


def _conv2d(before: int, after: int, kernel: int, stride: int = 1, **how: Any) -> nn.Sequential:
    """Return a 2-d convolution without bias that keeps sizes at stride 1, and its norm."""
    padding = how.get("dilation", 1) * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, padding, bias=False, **how), nn.BatchNorm2d(after)
    )  # fmt: skip


def _resnext() -> nn.Module:
    """Return a net of bottlenecks with 32 groups, in channels_last."""
    layers: list[nn.Module] = [_conv2d(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for before, width, depth in ((64, 128, 3), (256, 256, 4), (512, 512, 6), (1024, 1024, 3)):
        for i in range(depth):
            inputs, step = (before, 1 if before == 64 else 2) if i == 0 else (2 * width, 1)
            branch = nn.Sequential(
                _conv2d(inputs, width, 1), nn.ReLU(), _conv2d(width, width, 3, step, groups=32), nn.ReLU(),
                _conv2d(width, 2 * width, 1),
            )  # fmt: skip
            layers.append(Residual(branch, _conv2d(inputs, 2 * width, 1, step) if i == 0 else None))
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
    return net.to(memory_format=torch.channels_last)


class Inverted(nn.Module):
    """An inverted residual with squeeze-and-excitation, as in MobileNetV3."""

    def __init__(self, before: int, inner: int, after: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _conv2d(before, inner, 1), nn.Hardswish(), _conv2d(inner, inner, kernel, stride, groups=inner),
            nn.Hardswish(), Excited(inner, nn.Conv2d), _conv2d(inner, after, 1),
        )  # fmt: skip
        self.has_shortcut = before == after and stride == 1

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return the branch, with its input where both have one shape."""
        made: torch.Tensor = self.branch(data)
        return data + made if self.has_shortcut else made


def _mobile() -> nn.Module:
    rows = ((16, 64, 24, 3, 2), (24, 72, 24, 3, 1), (24, 72, 40, 5, 2), (40, 120, 40, 5, 1), (40, 240, 80, 3, 2),
            (80, 200, 80, 3, 1), (80, 480, 112, 3, 1), (112, 672, 160, 5, 2), (160, 960, 160, 5, 1))  # fmt: skip
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1280), nn.Hardswish())
    stem = nn.Sequential(_conv2d(3, 16, 3, 2), nn.Hardswish())
    return nn.Sequential(
        stem, *(Inverted(*row) for row in rows), _conv2d(160, 960, 1), nn.Hardswish(), head, nn.Linear(1280, 1000)
    )  # fmt: skip


class Modulated(nn.Module):
    """A convolution whose weights are scaled for each image, as one convolution with a group for each image."""

    def __init__(self, before: int, after: int, style: int, up: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(after, before, 3, 3))
        self.scale = nn.Linear(style, before)
        self.noise = nn.Parameter(torch.zeros(()))
        self.up = up
        line = torch.tensor([1.0, 3.0, 3.0, 1.0])
        self.register_buffer("blur", (torch.outer(line, line) / 16).expand(after, 1, 4, 4).contiguous())

    def forward(self, data: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        """Return the channels, twice as high and wide if ``up``."""
        count, before, height, width = data.shape
        weight = self.weight * self.scale(style).view(count, 1, before, 1, 1)
        weight = weight * weight.square().sum((2, 3, 4), keepdim=True).add(1e-8).rsqrt()
        flat, after = data.reshape(1, count * before, height, width), self.weight.shape[0]
        if self.up:
            weight = weight.transpose(1, 2).reshape(count * before, after, 3, 3)
            made = F.conv_transpose2d(flat, weight, stride=2, groups=count)
            made = made.reshape(count, after, 2 * height + 1, 2 * width + 1)
            made = F.conv2d(made, self.get_buffer("blur"), padding=1, groups=after)
        else:
            weight = weight.reshape(count * after, before, 3, 3)
            made = F.conv2d(flat, weight, padding=1, groups=count).reshape(count, after, height, width)
        noise = torch.randn(count, 1, *made.shape[2:], device=made.device)
        return F.leaky_relu(made + self.noise * noise, 0.2)


class Styled(nn.Module):
    """A generator of images from latent vectors, as in StyleGAN2."""

    def __init__(self, style: int, *widths: int) -> None:
        super().__init__()
        self.mapping = nn.Sequential(*(nn.Sequential(nn.Linear(style, style), nn.LeakyReLU(0.2)) for _ in range(8)))
        self.first = nn.Parameter(torch.randn(1, widths[0], 4, 4))
        pairs = list(pairwise(widths))
        self.ups = nn.ModuleList(Modulated(before, after, style, up=True) for before, after in pairs)
        self.sames = nn.ModuleList(Modulated(after, after, style, up=False) for _, after in pairs)
        self.colours = nn.ModuleList(nn.Conv2d(after, 3, 1) for _, after in pairs)

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        """Return an image for each vector of ``latent``, ``[batch, style]``."""
        style = self.mapping(latent)
        data = self.first.expand(latent.shape[0], -1, -1, -1)
        image = latent.new_zeros(latent.shape[0], 3, 4, 4)
        for up, same, colour in zip(self.ups, self.sames, self.colours, strict=True):
            data = same(up(data, style), style)
            image = F.interpolate(image, scale_factor=2, mode="bilinear", align_corners=False) + colour(data)
        return image


class Waves(nn.Module):
    """Causal gated convolutions over sounds with growing dilations, as in WaveNet."""

    def __init__(self, width: int, skip: int, stacks: int, depth: int) -> None:
        super().__init__()
        self.dilations = [2**i for _ in range(stacks) for i in range(depth)]
        self.stem = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=one) for one in self.dilations)
        self.nexts = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in self.dilations)
        self.skips = nn.ModuleList(nn.Conv1d(width, skip, 1) for _ in self.dilations)
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, 256, 1))

    def forward(self, sounds: torch.Tensor) -> torch.Tensor:
        """Return 256 scores for each sample of ``sounds``, ``[batch, 1, samples]``."""
        data, total = self.stem(sounds), 0
        for one, gates, following, skip in zip(self.dilations, self.gates, self.nexts, self.skips, strict=True):
            filtered, gate = gates(F.pad(data, (one, 0))).chunk(2, 1)
            inner = filtered.tanh() * gate.sigmoid()
            total = total + skip(inner)
            data = data + following(inner)
        return self.out(total)  # type: ignore[no-any-return]


class ConformerBlock(nn.Module):
    """Two halves of a feed-forward layer around attention and a depthwise convolution over time."""

    def __init__(self, width: int, heads: int, kernel: int) -> None:
        super().__init__()
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.convolutions = nn.Sequential(
            nn.Conv1d(width, 2 * width, 1), nn.GLU(1), nn.Conv1d(width, width, kernel, padding="same", groups=width),
            nn.BatchNorm1d(width), nn.SiLU(), nn.Conv1d(width, width, 1),
        )  # fmt: skip

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return the frames of ``data``, ``[batch, frames, width]``."""
        data = data + self.feeds[0](data) / 2
        normed = self.norms[0](data)
        data = data + self.attention(normed, normed, normed, need_weights=False)[0]
        data = data + self.convolutions(self.norms[1](data).transpose(1, 2)).transpose(1, 2)
        return self.norms[2](data + self.feeds[1](data) / 2)  # type: ignore[no-any-return]


class Conformer(nn.Module):
    """A quarter of the frames of a spectrogram, and Conformer blocks over them."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.quarter = nn.Sequential(
            nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU()
        )  # fmt: skip
        self.entry = nn.Linear(width * 19, width)
        self.blocks = nn.Sequential(*(ConformerBlock(width, 4, 31) for _ in range(depth)))
        self.out = nn.Linear(width, 1000)

    def forward(self, sounds: torch.Tensor) -> torch.Tensor:
        """Return the scores of each frame of ``sounds``, ``[batch, 1, frames, 80]``."""
        frames = self.quarter(sounds).transpose(1, 2).flatten(2)
        return self.out(self.blocks(self.entry(frames)))  # type: ignore[no-any-return]


class Enlarged(nn.Module):
    """Images that are four times as high and wide, by residual blocks and pixel shuffles, as in EDSR."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
            for _ in range(depth)
        )
        enlarge = (nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2))
        again = (nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2))
        self.out = nn.Sequential(*enlarge, *again, nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, small: torch.Tensor) -> torch.Tensor:
        """Return the large images."""
        data = stem = self.stem(small)
        for one in self.blocks:
            data = data + 0.1 * one(data)
        return self.out(stem + data)  # type: ignore[no-any-return]


class OddAutoencoder(nn.Module):
    """Images of odd sizes, halved and enlarged to the sizes that they had."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.downs = nn.ModuleList(nn.Conv2d(*pair, 5, 2, 2) for pair in pairwise(widths))
        self.ups = nn.ModuleList(nn.ConvTranspose2d(after, before, 5, 2, 2) for before, after in pairwise(widths))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return the images again."""
        shapes, data = [], pictures
        for down in self.downs:
            shapes.append(data.shape[2:])
            data = F.elu(down(data))
        for up, shape in zip(reversed(self.ups), reversed(shapes), strict=True):
            data = F.elu(up(data, output_size=list(shape)))
        return data


class Segmenter(nn.Module):
    """Dilated separable convolutions side by side and a decoder with low-level channels, as in DeepLabv3+."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.low = nn.Sequential(block(nn.Conv2d, nn.BatchNorm2d, 3, 64, 128, kernel_size=3, stride=2, padding=1))
        middle = [Residual(_conv2d(128, 256, 3, 2), _conv2d(128, 256, 1, 2))]
        for d in (2, 2, 4):
            pair = (_conv2d(256, 256, 3, dilation=d), _conv2d(256, 256, 3, dilation=d))
            middle.append(Residual(nn.Sequential(pair[0], nn.ReLU(), pair[1])))
        self.high = nn.Sequential(*middle)
        self.branches = nn.ModuleList([_conv2d(256, 128, 1)])
        for d in (6, 12, 18):
            deep = _conv2d(256, 256, 3, dilation=d, groups=256)
            self.branches.append(nn.Sequential(deep, nn.ReLU(), _conv2d(256, 128, 1)))
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(256, 128, 1), nn.ReLU())
        self.join = nn.Sequential(_conv2d(5 * 128, 256, 1), nn.ReLU(), nn.Dropout(0.5))
        self.reduce = nn.Sequential(_conv2d(128, 48, 1), nn.ReLU())
        self.out = nn.Sequential(_conv2d(304, 256, 3), nn.ReLU(), nn.Conv2d(256, classes, 1))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return the scores of each pixel."""
        how: dict[str, Any] = {"mode": "bilinear", "align_corners": False}
        low = self.low(pictures)
        high = self.high(low)
        branches = [F.relu(branch(high)) for branch in self.branches]
        branches.append(F.interpolate(self.pooled(high), high.shape[2:], **how))
        joined = F.interpolate(self.join(torch.cat(branches, 1)), low.shape[2:], **how)
        return F.interpolate(self.out(torch.cat([joined, self.reduce(low)], 1)), pictures.shape[2:], **how)


CONVOLUTIONS: dict[str, Training] = {
    "video-factorised": (factorised_video, images(6, 3, 16, 112, 112), ""),
    "video-two-paths": (TwoPaths, images(6, 3, 32, 160, 160), "bfloat16"),
    "video-depthwise": (video_depthwise, images(8, 3, 13, 160, 160), "float16"),
    "volumes-residual": (lambda: Vnet(16, 32, 64), images(2, 1, 48, 96, 96), ""),
    "resnext": (_resnext, channels_last(48, 3, 224, 224), "bfloat16"),
    "mobile": (_mobile, images(96, 3, 224, 224), "float16"),
    "styled": (lambda: Styled(512, 512, 512, 512, 256, 128, 64), images(16, 512), ""),
    "waves": (lambda: Waves(64, 256, 2, 9), images(4, 1, 16000), ""),
    "conformer": (lambda: Conformer(256, 8), images(24, 1, 1200, 80), "bfloat16"),
    "enlarged": (lambda: Enlarged(64, 16), images(8, 3, 96, 96), ""),
    "odd-autoencoder": (lambda: OddAutoencoder(3, 48, 96, 192, 384), images(20, 3, 301, 437), ""),
    "segmenter": (lambda: Segmenter(19), images(8, 3, 385, 513), "float16"),
}
