"""Metric learning: triplets in a batch that violate the margin are mined from all pairs of distances."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(600, 1000), nn.PReLU(), nn.LayerNorm(1000), nn.Linear(1000, 700), nn.PReLU(), nn.Linear(700, 96)
).to(device)
optimizer = torch.optim.Adamax(model.parameters(), lr=1e-3)
for _ in range(4):
    data, labels = torch.randn(150, 600).to(device), torch.randint(12, (150,)).to(device)
    points = F.normalize(model(data), dim=1)
    distances = torch.cdist(points, points)
    same = labels[:, None] == labels[None, :]
    own = torch.eye(len(labels), dtype=torch.bool, device=device)
    valid = (same & ~own)[:, :, None] & ~same[:, None, :]
    losses = distances[:, :, None] - distances[:, None, :] + 0.2
    violating = valid & (losses > 0)
    loss = losses[violating].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
