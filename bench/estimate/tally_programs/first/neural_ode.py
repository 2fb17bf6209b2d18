"""A neural ODE with an adaptive Dormand-Prince solver: the error of a step decides its size."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TABLEAU = [
    [],
    [1 / 5],
    [3 / 40, 9 / 40],
    [44 / 45, -56 / 15, 32 / 9],
    [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
]
FIFTH = [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784]
FOURTH = [5179 / 57600, 0, 7571 / 16695, 393 / 640, -92097 / 339200]


class Dynamics(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(width + 1, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, width)
        )

    def forward(self, time, state):
        return self.net(torch.cat([state, torch.full_like(state[:, :1], time)], 1))


def integrate(dynamics, state, end=1.0, tolerance=1e-3):
    time, size, tries = 0.0, 0.1, 0
    while time < end and tries < 60:
        tries += 1
        size = min(size, end - time)
        slopes = []
        for weights in TABLEAU:
            at = state
            for weight, slope in zip(weights, slopes, strict=True):
                at = at + size * weight * slope
            slopes.append(dynamics(time, at))
        high = state + size * sum(w * k for w, k in zip(FIFTH, slopes, strict=True))
        low = state + size * sum(w * k for w, k in zip(FOURTH, slopes, strict=True))
        error = ((high - low).abs() / (tolerance + tolerance * state.abs())).max()
        if error < 1:
            time, state = time + size, high
        size = size * min(2.0, max(0.3, 0.9 * float(error.detach() + 1e-9) ** -0.2))
    return state


torch.manual_seed(0)
encoder, dynamics, head = nn.Linear(64, 48).to(device), Dynamics(48).to(device), nn.Linear(48, 10).to(device)
parameters = [*encoder.parameters(), *dynamics.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-3)
for _ in range(4):
    data, labels = torch.randn(256, 64).to(device), torch.randint(10, (256,)).to(device)
    loss = nn.functional.cross_entropy(head(integrate(dynamics, encoder(data))), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
