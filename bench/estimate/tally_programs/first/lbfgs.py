"""Fit a physics-informed network to the Burgers equation with L-BFGS and a line search."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(2, 320), nn.Tanh(), nn.Linear(320, 320), nn.Tanh(), nn.Linear(320, 320), nn.Tanh(), nn.Linear(320, 1)
).to(device)
inner = torch.rand(1500, 2, device=device) * 2 - 1
edge = torch.rand(300, 2, device=device)
wanted = -torch.sin(torch.pi * edge[:, :1])
optimizer = torch.optim.LBFGS(
    model.parameters(), lr=1.0, max_iter=8, history_size=10, line_search_fn="strong_wolfe", tolerance_grad=1e-9
)


def closure():
    optimizer.zero_grad()
    points = inner.clone().requires_grad_(True)
    value = model(points)
    slope = torch.autograd.grad(value.sum(), points, create_graph=True)[0]
    bend = torch.autograd.grad(slope[:, 0].sum(), points, create_graph=True)[0][:, :1]
    residual = slope[:, 1:] + value * slope[:, :1] - 0.01 / torch.pi * bend
    loss = residual.pow(2).mean() + (model(edge) - wanted).pow(2).mean()
    loss.backward()
    return loss


for step in range(4):
    loss = optimizer.step(closure)
    print(step, loss.item())
