"""A mixture density network with torch.distributions, and samples from it after each epoch."""

import torch
from torch import nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Mixture(nn.Module):
    def __init__(self, inputs=20, outputs=16, parts=24):
        super().__init__()
        self.parts, self.outputs = parts, outputs
        self.body = nn.Sequential(nn.Linear(inputs, 400), nn.ELU(), nn.Linear(400, 400), nn.ELU())
        self.weights, self.means = nn.Linear(400, parts), nn.Linear(400, parts * outputs)
        self.scales = nn.Linear(400, parts * outputs)

    def forward(self, data):
        hidden = self.body(data)
        shape = (-1, self.parts, self.outputs)
        scales = nn.functional.softplus(self.scales(hidden)).view(shape) + 1e-3
        parts = Independent(Normal(self.means(hidden).view(shape), scales), 1)
        return MixtureSameFamily(Categorical(logits=self.weights(hidden)), parts)


torch.manual_seed(0)
model = Mixture().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for _ in range(3):
        data = torch.randn(1700, 20).to(device)
        wanted = torch.randn(1700, 16).to(device)
        loss = -model(data).log_prob(wanted).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        drawn = model(torch.randn(100, 20).to(device)).sample((50,))
        print(epoch, drawn.std().item())
