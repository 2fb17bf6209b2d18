# A normalizing flow: log-determinants are added up through modules that return pairs.
# devices: cpu cuda
import corpus_state
import torch
from torch import nn

corpus_state.seed()
device = corpus_state.DEVICE


class Coupling(nn.Module):
    def __init__(self, flipped):
        super().__init__()
        self.flipped, self.net = flipped, nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, pair):
        values, determinant = pair
        one, other = values.flip(1).chunk(2, 1) if self.flipped else values.chunk(2, 1)
        scale, shift = self.net(one).chunk(2, 1)
        return torch.cat([one, other * scale.tanh().exp() + shift], dim=1), determinant + scale.tanh().sum(1)


model = nn.Sequential(*(Coupling(number % 2 == 1) for number in range(4))).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(25):
    values, determinant = model((torch.randn(32, 4, device=device) * 2 + 1, torch.zeros(32, device=device)))
    loss = (values.square().sum(1) / 2 - determinant).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.5f}")
corpus_state.report(model=model, recording_over=True)
