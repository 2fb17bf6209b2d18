"""A style-based GAN with lazy regularization: a gradient penalty and the generator's path length."""

import math

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Styled(nn.Module):
    def __init__(self, inside, outside, style=64):
        super().__init__()
        self.weight, self.style = nn.Parameter(torch.randn(outside, inside, 3, 3)), nn.Linear(style, inside)
        self.noise = nn.Parameter(torch.zeros(1))

    def forward(self, x, style):
        batch, _, height, width = x.shape
        weight = self.weight[None] * (self.style(style)[:, None, :, None, None] + 1)
        weight = weight * torch.rsqrt(weight.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8)
        x = F.conv2d(x.reshape(1, -1, height, width), weight.flatten(0, 1), padding=1, groups=batch)
        x = x.view(batch, -1, height, width)
        return F.leaky_relu(x + self.noise * torch.randn(batch, 1, height, width, device=x.device), 0.2)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2))
        self.start = nn.Parameter(torch.randn(1, 64, 4, 4))
        self.layers = nn.ModuleList(Styled(a, b) for a, b in ((64, 64), (64, 48), (48, 32), (32, 16)))
        self.leave = nn.Conv2d(16, 3, 1)

    def forward(self, z):
        style = self.map(z)
        x = self.start.expand(len(z), -1, -1, -1)
        for place, layer in enumerate(self.layers):
            if place:
                x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = layer(x, style)
        return self.leave(x), style


def judge():
    layers, inside = [], 3
    for width in (32, 64, 96):
        layers += [nn.Conv2d(inside, width, 3, 2, 1), nn.LeakyReLU(0.2)]
        inside = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(96 * 16, 1))


torch.manual_seed(0)
makes, judges = Generator().to(device), judge().to(device)
by_maker = torch.optim.Adam(makes.parameters(), lr=2e-3, betas=(0.0, 0.99))
by_judge = torch.optim.Adam(judges.parameters(), lr=2e-3, betas=(0.0, 0.99))
mean_length = torch.zeros((), device=device)
for step in range(9):
    real = torch.randn(16, 3, 32, 32).to(device)
    with torch.no_grad():
        fake, _ = makes(torch.randn(16, 64, device=device))
    loss = F.softplus(judges(fake)).mean() + F.softplus(-judges(real)).mean()
    by_judge.zero_grad()
    loss.backward()
    by_judge.step()
    if step % 4 == 3:
        real.requires_grad_(True)
        (slope,) = torch.autograd.grad(judges(real).sum(), real, create_graph=True)
        by_judge.zero_grad()
        (20 * slope.pow(2).flatten(1).sum(1).mean()).backward()
        by_judge.step()
    fake, style = makes(torch.randn(16, 64, device=device))
    by_maker.zero_grad()
    F.softplus(-judges(fake)).mean().backward()
    by_maker.step()
    if step % 3 == 2:
        fake, style = makes(torch.randn(8, 64, device=device))
        noise = torch.randn_like(fake) / math.sqrt(32 * 32)
        (slope,) = torch.autograd.grad((fake * noise).sum(), style, create_graph=True)
        lengths = slope.pow(2).sum(1).sqrt()
        mean_length = mean_length + 0.01 * (lengths.mean().detach() - mean_length)
        by_maker.zero_grad()
        (8 * (lengths - mean_length).pow(2).mean()).backward()
        by_maker.step()
