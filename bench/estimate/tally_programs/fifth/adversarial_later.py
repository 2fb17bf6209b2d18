"""An image compressor: reconstruction first, and after some steps also a discriminator and features of a fixed net."""

import copy
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STEPS, ADVERSARIAL_FROM = 60, 40


def stack(*sizes, stride=2):
    layers = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Conv2d(inputs, outputs, 4, stride, 1), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers)


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(stack(3, 32, 64, 96), nn.Conv2d(96, 16, 1))
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 96, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(96, 48, 4, 2, 1), nn.SiLU(),
            nn.ConvTranspose2d(48, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, images):
        code = self.encoder(images)
        noisy = code + (torch.rand_like(code) - 0.5 if self.training else code.round() - code)
        return self.decoder(noisy), code


torch.manual_seed(0)
coder = Coder().to(device)
critic = nn.Sequential(stack(3, 64, 128, 192), nn.Conv2d(192, 1, 3, padding=1)).to(device)
features = copy.deepcopy(critic[0]).eval().requires_grad_(False)
optimizer = torch.optim.Adam(coder.parameters(), lr=2e-4)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.9))
for step in range(STEPS):
    images = torch.rand(8, 3, 96, 96, device=device) * 2 - 1
    made, code = coder(images)
    loss = F.l1_loss(made, images) + 0.01 * code.abs().mean()
    if step >= ADVERSARIAL_FROM:
        critic.requires_grad_(False)
        loss = loss + F.mse_loss(features(made), features(images)) - 0.1 * critic(made).mean()
        critic.requires_grad_(True)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step >= ADVERSARIAL_FROM:
        real, fake = critic(images), critic(made.detach())
        critic_loss = F.relu(1 - real).mean() + F.relu(1 + fake).mean()
        critic_optimizer.zero_grad(set_to_none=True)
        critic_loss.backward()
        critic_optimizer.step()
