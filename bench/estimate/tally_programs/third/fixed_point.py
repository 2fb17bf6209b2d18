"""A deep equilibrium layer: iterate to a fixed point without a graph, then one step with the implicit gradient."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(8, width) for _ in range(3)])

    def forward(self, state, data):
        hidden = self.norms[0](torch.relu(self.one(state)))
        return self.norms[2](torch.relu(state + self.norms[1](data + self.two(hidden))))


def solve(function, start, tolerance=1e-2, most=25):
    state = start
    for _ in range(most):
        following = function(state)
        if (following - state).norm() / following.norm() < tolerance:
            return following
        state = following
    return state


class Equilibrium(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, data):
        with torch.no_grad():
            state = solve(lambda state: self.cell(state, data), torch.zeros_like(data))
        state = self.cell(state, data)
        if self.training:
            copy = state.detach().requires_grad_()
            made = self.cell(copy, data)

            def backward(gradient):
                return solve(
                    lambda slope: torch.autograd.grad(made, copy, slope, retain_graph=True)[0] + gradient, gradient
                )

            state.register_hook(backward)
        return state


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 40, 3, padding=1),
    nn.BatchNorm2d(40),
    Equilibrium(Cell(40)),
    nn.BatchNorm2d(40),
    nn.AvgPool2d(8),
    nn.Flatten(),
    nn.Linear(40 * 16, 10),
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(4):
    frames, labels = torch.rand(20, 3, 32, 32).to(device), torch.randint(10, (20,)).to(device)
    loss = nn.functional.cross_entropy(model(frames), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
