"""ResNets as torchvision has them, layer by layer: ``resnets:resnet34`` and ``resnets:resnet50`` are models by name."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions, or three with a narrow one in the middle, and what they are added to."""

    def __init__(self, inner: int, planes: int, stride: int, *, is_wide: bool) -> None:
        super().__init__()
        outer = planes * (4 if is_wide else 1)
        sizes = ((inner, planes, 1, 1), (planes, planes, 3, stride), (planes, outer, 1, 1))
        if not is_wide:
            sizes = ((inner, planes, 3, stride), (planes, planes, 3, 1))  # type: ignore[assignment]
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, k, s, k // 2, bias=False) for a, b, k, s in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _, _ in sizes)
        self.relu = nn.ReLU(inplace=True)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.down = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the block's activation."""
        hidden = images
        for place, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            hidden = norm(convolution(hidden))
            if place + 1 < len(self.norms):
                hidden = self.relu(hidden)
        hidden += self.down(images)
        activation: torch.Tensor = self.relu(hidden)
        return activation


class ResNet(nn.Module):
    """A stem, four stages of blocks, and a head of 1,000 classes."""

    def __init__(self, depths: tuple[int, ...], *, is_wide: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        blocks, inner = [], 64
        for stage, depth in enumerate(depths):
            planes = 64 << stage
            for place in range(depth):
                blocks.append(Block(inner, planes, 2 if stage and not place else 1, is_wide=is_wide))
                inner = planes * (4 if is_wide else 1)
        self.blocks = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inner, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        logits: torch.Tensor = self.fc(torch.flatten(self.avgpool(self.blocks(hidden)), 1))
        return logits


def resnet34() -> ResNet:
    """Return torchvision's ResNet-34."""
    return ResNet((3, 4, 6, 3), is_wide=False)


def resnet50() -> ResNet:
    """Return torchvision's ResNet-50, with the stride in the middle convolution."""
    return ResNet((3, 4, 6, 3), is_wide=True)
