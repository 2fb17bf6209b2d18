"""Three tasks with a shared trunk: conflicting gradients are projected before the step (PCGrad)."""

import random

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
random.seed(0)
trunk = nn.Sequential(nn.Linear(300, 1200), nn.GELU(), nn.Linear(1200, 1200), nn.GELU()).to(device)
heads = nn.ModuleList([nn.Linear(1200, outputs) for outputs in (1, 10, 40)]).to(device)
shared = list(trunk.parameters())
optimizer = torch.optim.Adagrad([*shared, *heads.parameters()], lr=1e-2)
for _ in range(4):
    data = torch.randn(512, 300).to(device)
    hidden = trunk(data)
    losses = [head(hidden).pow(2).mean() for head in heads]
    optimizer.zero_grad()
    flats = []
    for head, loss in zip(heads, losses, strict=True):
        slopes = torch.autograd.grad(loss, [*shared, *head.parameters()], retain_graph=True)
        flats.append(torch.cat([slope.flatten() for slope in slopes[: len(shared)]]))
        for parameter, slope in zip(head.parameters(), slopes[len(shared) :], strict=True):
            parameter.grad = slope
    projected = [flat.clone() for flat in flats]
    for mine in projected:
        for other in random.sample(flats, len(flats)):
            product = mine @ other
            if product < 0:
                mine -= product / (other @ other) * other
    total, start = torch.stack(projected).sum(0), 0
    for parameter in shared:
        parameter.grad = total[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    optimizer.step()
