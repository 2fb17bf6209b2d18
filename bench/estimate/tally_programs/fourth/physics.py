"""A physics-informed network: second derivatives by autograd, points by residual, and Adam before L-BFGS."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Waves(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.scales = nn.Parameter(torch.randn(2, width) * 2, requires_grad=False)
        self.body = nn.Sequential(
            nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, x):
        angles = x @ self.scales
        return self.body(torch.cat([angles.sin(), angles.cos()], -1))


def residual(model, points):
    points.requires_grad_(True)
    value = model(points)
    first = torch.autograd.grad(value, points, torch.ones_like(value), create_graph=True)[0]
    u_t, u_x = first[:, :1], first[:, 1:]
    u_xx = torch.autograd.grad(u_x, points, torch.ones_like(u_x), create_graph=True)[0][:, 1:]
    return u_t + value * u_x - 0.01 * u_xx


def drawn(model, count):
    points = torch.rand(4 * count, 2, device=device)
    size = residual(model, points).abs().squeeze(1).detach()
    return points[torch.multinomial(size / size.sum(), count)].detach()


torch.manual_seed(0)
model = Waves().to(device)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
edges = torch.rand(256, 2, device=device)
edges[:, 0] = 0
wanted = -torch.sin(torch.pi * edges[:, 1:])
points = torch.rand(1024, 2, device=device)
for step in range(8):
    if step % 3 == 2:
        points = drawn(model, 1024)
    optimizer.zero_grad()
    loss = residual(model, points).pow(2).mean() + (model(edges) - wanted).pow(2).mean()
    loss.backward()
    optimizer.step()
final = torch.optim.LBFGS(
    [p for p in model.parameters() if p.requires_grad], max_iter=12, history_size=10, line_search_fn="strong_wolfe"
)


def closure():
    final.zero_grad()
    loss = residual(model, points).pow(2).mean() + (model(edges) - wanted).pow(2).mean()
    loss.backward()
    return loss


print(float(final.step(closure)))
