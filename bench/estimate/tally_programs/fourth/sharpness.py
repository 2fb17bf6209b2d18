"""Sharpness-aware minimization with a wrapped optimizer and a closure, mixed images, and smoothed labels."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class SAM(torch.optim.Optimizer):
    def __init__(self, parameters, base, rho=0.05, **how):
        super().__init__(parameters, {"rho": rho, **how})
        self.base = base(self.param_groups, **how)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self):
        norms = [p.grad.norm(2) for group in self.param_groups for p in group["params"] if p.grad is not None]
        scale = 0.05 / (torch.norm(torch.stack(norms), 2) + 1e-12)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old"] = p.data.clone()
                    p.add_(p.grad * scale.to(p))
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        self.climb()
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()
        return loss


class Wide(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(inside), nn.BatchNorm2d(outside)
        self.one, self.two = nn.Conv2d(inside, outside, 3, stride, 1), nn.Conv2d(outside, outside, 3, 1, 1)
        self.skip = nn.Conv2d(inside, outside, 1, stride)

    def forward(self, x):
        seen = F.relu(self.first(x))
        return self.skip(seen) + self.two(F.dropout(F.relu(self.second(self.one(seen))), 0.3, self.training))


torch.manual_seed(0)
numbers = np.random.default_rng(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), Wide(16, 48, 1), Wide(48, 96, 2), Wide(96, 128, 2), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(128, 100),
).to(device)  # fmt: skip
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
for _ in range(4):
    images, labels = torch.randn(16, 3, 32, 32).to(device), torch.randint(100, (16,)).to(device)
    part, order = float(numbers.beta(1, 1)), torch.randperm(16, device=device)
    mixed = part * images + (1 - part) * images[order]

    def closure(mixed=mixed, labels=labels, order=order, part=part):
        scores = model(mixed)
        loss = part * F.cross_entropy(scores, labels, label_smoothing=0.1)
        loss = loss + (1 - part) * F.cross_entropy(scores, labels[order], label_smoothing=0.1)
        loss.backward()
        return loss

    closure()
    optimizer.step(closure)
