"""A Wasserstein GAN with gradient penalty: five steps of the critic for each of the generator."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
generator = nn.Sequential(
    nn.Linear(100, 192 * 6 * 6),
    nn.Unflatten(1, (192, 6, 6)),
    nn.BatchNorm2d(192),
    nn.ReLU(),
    nn.ConvTranspose2d(192, 96, 4, 2, 1),
    nn.BatchNorm2d(96),
    nn.ReLU(),
    nn.ConvTranspose2d(96, 48, 4, 2, 1),
    nn.BatchNorm2d(48),
    nn.ReLU(),
    nn.ConvTranspose2d(48, 3, 4, 2, 1),
    nn.Tanh(),
).to(device)
critic = nn.Sequential(
    nn.Conv2d(3, 48, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(48, 96, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(96, 192, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Flatten(),
    nn.Linear(192 * 6 * 6, 1),
).to(device)
makes = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
judges = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))


def penalty(real, fake):
    mix = torch.rand(real.shape[0], 1, 1, 1, device=real.device)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    slopes = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
    return ((slopes.flatten(1).norm(2, 1) - 1) ** 2).mean()


for step in range(7):
    real = (torch.rand(24, 3, 48, 48) * 2 - 1).to(device)
    fake = generator(torch.randn(24, 100, device=device)).detach()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(real, fake)
    judges.zero_grad()
    loss.backward()
    judges.step()
    if step % 5 == 4:
        loss = -critic(generator(torch.randn(24, 100, device=device))).mean()
        makes.zero_grad()
        loss.backward()
        makes.step()
