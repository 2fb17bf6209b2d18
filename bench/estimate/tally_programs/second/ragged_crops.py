"""Segment images of different sizes: crops are cut at random places and padded to the largest of a batch."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Down(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(4, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.GroupNorm(4, outputs),
            nn.ReLU(),
        )

    def forward(self, data):
        return self.body(data)


class Segmenter(nn.Module):
    def __init__(self, classes=6, widths=(20, 40, 80)):
        super().__init__()
        self.downs = nn.ModuleList([Down(i, o) for i, o in zip((3, *widths[:-1]), widths, strict=True)])
        self.ups = nn.ModuleList([Down(i + o, o) for i, o in zip(widths[:0:-1], widths[-2::-1], strict=True)])
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, data):
        kept = []
        for down in self.downs:
            data = down(data)
            kept.append(data)
            data = F.max_pool2d(data, 2)
        data = kept.pop()
        for up in self.ups:
            skip = kept.pop()
            data = F.interpolate(data, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            data = up(torch.cat([data, skip], 1))
        return self.head(data)


numbers = np.random.default_rng(21)
torch.manual_seed(0)


def crops(count):
    images, masks = [], []
    for _ in range(count):
        height, width = (int(n) for n in numbers.integers(40, 120, 2))
        images.append(torch.from_numpy(numbers.random((3, height, width), dtype=np.float32)))
        masks.append(torch.from_numpy(numbers.integers(0, 6, (height, width))))
    tall, wide = (max(image.shape[side] for image in images) for side in (1, 2))
    images = [F.pad(one, (0, wide - one.shape[2], 0, tall - one.shape[1])) for one in images]
    masks = [F.pad(one, (0, wide - one.shape[1], 0, tall - one.shape[0]), value=255) for one in masks]
    return torch.stack(images), torch.stack(masks)


model = Segmenter().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
for _ in range(8):
    images, masks = crops(6)
    images, masks = images.to(device), masks.to(device)
    scores = model(images)
    valid = masks != 255
    loss = F.cross_entropy(scores.permute(0, 2, 3, 1)[valid], masks[valid])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
