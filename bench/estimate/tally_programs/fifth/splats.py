"""Splats: an image is fitted by gaussians, and those with large gradients are split every few steps."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIDE, STEPS, FROM, EVERY, MOST = 40, 40, 12, 8, 3000


def render(places, sizes, colors, opacity):
    axis = torch.linspace(0, 1, SIDE, device=places.device)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 1, 2)
    away = ((grid - places) / sizes.exp().unsqueeze(-1)).square().sum(-1)
    weights = torch.sigmoid(opacity) * torch.exp(-0.5 * away)
    return (weights @ torch.sigmoid(colors)) / (1 + weights.sum(1, keepdim=True))


def optimizer_of(parameters):
    rates = {"places": 2e-3, "sizes": 5e-3, "colors": 1e-2, "opacity": 2e-2}
    return torch.optim.Adam([{"params": [parameters[name]], "lr": rate} for name, rate in rates.items()], eps=1e-15)


torch.manual_seed(0)
count = 600
parameters = {
    "places": nn.Parameter(torch.rand(count, 2, device=device)),
    "sizes": nn.Parameter(torch.full((count,), -3.0, device=device)),
    "colors": nn.Parameter(torch.randn(count, 3, device=device)),
    "opacity": nn.Parameter(torch.zeros(count, device=device)),
}
optimizer = optimizer_of(parameters)
target = torch.rand(SIDE * SIDE, 3, device=device)
seen = torch.zeros(count, device=device)
for step in range(STEPS):
    loss = (render(**parameters) - target).abs().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    seen += parameters["places"].grad.norm(dim=1)
    optimizer.step()
    if step >= FROM and step % EVERY == 0 and len(seen) < MOST:
        split = seen > seen.median()
        with torch.no_grad():
            parameters = {
                name: nn.Parameter(torch.cat([values, values[split] + 0.01 * torch.randn_like(values[split])]))
                for name, values in parameters.items()
            }
        optimizer = optimizer_of(parameters)
        seen = torch.zeros(len(parameters["sizes"]), device=device)
