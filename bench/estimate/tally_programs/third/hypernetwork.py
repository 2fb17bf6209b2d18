"""A hypernetwork makes the weights of a network of coordinates for each image of a batch (vmap)."""

import torch
from torch import nn
from torch.func import vmap

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = [(32, 2), (32,), (32, 32), (32,), (3, 32), (3,)]


def field(flat, points):
    parts, start = [], 0
    for size in SIZES:
        count = torch.Size(size).numel()
        parts.append(flat[start : start + count].view(size))
        start += count
    hidden = torch.sin(30 * nn.functional.linear(points, parts[0], parts[1]))
    hidden = torch.sin(nn.functional.linear(hidden, parts[2], parts[3]))
    return nn.functional.linear(hidden, parts[4], parts[5])


torch.manual_seed(0)
total = sum(torch.Size(size).numel() for size in SIZES)
hyper = nn.Sequential(
    nn.Conv2d(3, 32, 5, 4),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, 2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(64 * 5 * 5, 512),
    nn.ReLU(),
    nn.Linear(512, total),
).to(device)
steps = torch.linspace(-1, 1, 48, device=device)
grid = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), -1).view(-1, 2)
optimizer = torch.optim.AdamW(hyper.parameters(), lr=1e-4)
for _ in range(4):
    frames = torch.rand(20, 3, 48, 48).to(device)
    rows = torch.randperm(len(grid), device=device)[:1500]
    drawn = vmap(field, (0, None))(0.1 * hyper(frames), grid[rows])
    loss = (drawn - frames.flatten(2).transpose(1, 2)[:, rows]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
