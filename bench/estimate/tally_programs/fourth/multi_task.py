"""Several tasks with one trunk: losses are weighed by learned uncertainties, and batches differ."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(8, b), nn.GELU())
            for a, b in ((3, 32), (32, 64), (64, 128))
        )

    def forward(self, x):
        found = []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = Trunk()
        self.depth = nn.Sequential(nn.Conv2d(128, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 1))
        self.parts = nn.Sequential(nn.Conv2d(128 + 64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 21, 1))
        self.kind = nn.Linear(128, 100)
        self.log_variances = nn.Parameter(torch.zeros(3))

    def forward(self, images, task):
        _, middle, high = self.trunk(images)
        if task == "depth":
            return F.interpolate(self.depth(high), scale_factor=8, mode="bilinear", align_corners=False)
        if task == "parts":
            up = F.interpolate(high, size=middle.shape[-2:], mode="bilinear", align_corners=False)
            return F.interpolate(self.parts(torch.cat([up, middle], 1)), size=images.shape[-2:], mode="bilinear")
        return self.kind(high.mean((2, 3)))


torch.manual_seed(0)
model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tasks = {
    "kind": DataLoader(TensorDataset(torch.rand(96, 3, 64, 64), torch.randint(100, (96,))), 32),
    "depth": DataLoader(TensorDataset(torch.rand(36, 3, 96, 96), torch.rand(36, 1, 96, 96)), 12),
    "parts": DataLoader(TensorDataset(torch.rand(18, 3, 96, 96), torch.randint(21, (18, 96, 96))), 6),
}
losses = {"kind": F.cross_entropy, "depth": F.smooth_l1_loss, "parts": F.cross_entropy}
for _ in range(2):
    for batches in zip(*tasks.values(), strict=True):
        optimizer.zero_grad()
        total = 0.0
        for place, (task, (images, wanted)) in enumerate(zip(tasks, batches, strict=True)):
            loss = losses[task](model(images.to(device), task), wanted.to(device))
            total = total + torch.exp(-model.log_variances[place]) * loss + model.log_variances[place]
        total.backward()
        optimizer.step()
