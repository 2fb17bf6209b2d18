"""Train an autoencoder of images and keep an exponential moving average of its weights."""

import copy

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Average:
    def __init__(self, model, decay):
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        mine, theirs = self.model.state_dict(), model.state_dict()
        for name, value in theirs.items():
            if value.dtype.is_floating_point:
                mine[name].mul_(self.decay).add_(value, alpha=1 - self.decay)
            else:
                mine[name].copy_(value)


def network():
    return nn.Sequential(
        nn.Conv2d(3, 48, 3, 2, 1),
        nn.BatchNorm2d(48),
        nn.SiLU(),
        nn.Conv2d(48, 144, 3, 2, 1),
        nn.BatchNorm2d(144),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(144 * 12 * 12, 220),
        nn.Linear(220, 144 * 12 * 12),
        nn.Unflatten(1, (144, 12, 12)),
        nn.ConvTranspose2d(144, 48, 4, 2, 1),
        nn.BatchNorm2d(48),
        nn.SiLU(),
        nn.ConvTranspose2d(48, 3, 4, 2, 1),
    )


torch.manual_seed(0)
model = network().to(device)
average = Average(model, 0.995)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
for step in range(6):
    frames = torch.rand(28, 3, 48, 48).to(device)
    loss = nn.functional.mse_loss(model(frames), frames)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(model)
    if step % 3 == 2:
        with torch.no_grad():
            print(nn.functional.mse_loss(average.model(frames), frames).item())
