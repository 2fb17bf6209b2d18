"""A normalizing flow of coupling layers with learned permutations (LU), trained by likelihood."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Mix(nn.Module):
    def __init__(self, width):
        super().__init__()
        lower, upper = torch.linalg.qr(torch.randn(width, width))
        self.lower, self.upper = nn.Parameter(lower.tril(-1)), nn.Parameter(upper.triu(1))
        self.scales = nn.Parameter(torch.zeros(width))
        self.register_buffer("one", torch.eye(width))

    def forward(self, data):
        weight = (self.lower.tril(-1) + self.one) @ (self.upper.triu(1) + torch.diag(self.scales.exp()))
        return data @ weight.T, self.scales.sum()


class Coupling(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(width // 2, hidden),
            nn.LeakyReLU(),
            nn.Linear(hidden, hidden),
            nn.LeakyReLU(),
            nn.Linear(hidden, width),
        )

    def forward(self, data):
        one, two = data.chunk(2, 1)
        scale, shift = self.net(one).chunk(2, 1)
        scale = torch.tanh(scale)
        return torch.cat([one, two * scale.exp() + shift], 1), scale.sum(1)


torch.manual_seed(0)
layers = nn.ModuleList()
for _ in range(5):
    layers += [Mix(64), Coupling(64, 320)]
layers.to(device)
prior = torch.distributions.MultivariateNormal(torch.zeros(64, device=device), torch.eye(64, device=device))
optimizer = torch.optim.NAdam(layers.parameters(), lr=1e-4)
for _ in range(4):
    data, total = torch.randn(1400, 64).to(device), 0
    for layer in layers:
        data, logdet = layer(data)
        total = total + logdet
    loss = -(prior.log_prob(data) + total).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(layers.parameters(), 1.0)
    optimizer.step()
