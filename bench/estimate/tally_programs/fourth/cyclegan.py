"""CycleGAN: two generators and two discriminators with two optimizers, and pools of earlier images."""

import itertools
import random

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(width, width, 3),
            nn.InstanceNorm2d(width),
            nn.ReLU(inplace=True),
            nn.ReflectionPad2d(1),
            nn.Conv2d(width, width, 3),
            nn.InstanceNorm2d(width),
        )

    def forward(self, x):
        return x + self.body(x)


def generator(width=24):
    return nn.Sequential(
        nn.ReflectionPad2d(3),
        nn.Conv2d(3, width, 7),
        nn.InstanceNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, 2 * width, 3, 2, 1),
        nn.InstanceNorm2d(2 * width),
        nn.ReLU(inplace=True),
        Residual(2 * width),
        Residual(2 * width),
        nn.ConvTranspose2d(2 * width, width, 3, 2, 1, 1),
        nn.InstanceNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, 3, 7, padding=3),
        nn.Tanh(),
    )


def discriminator(width=32):
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(width, 2 * width, 4, 2, 1),
        nn.InstanceNorm2d(2 * width),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(2 * width, 1, 4, 1, 1),
    )


class Pool:
    def __init__(self, size):
        self.size, self.images = size, []

    def query(self, images):
        found = []
        for image in images:
            image = image.unsqueeze(0)
            if len(self.images) < self.size:
                self.images.append(image)
                found.append(image)
            elif random.random() > 0.5:
                place = random.randrange(self.size)
                found.append(self.images[place].clone())
                self.images[place] = image
            else:
                found.append(image)
        return torch.cat(found)


torch.manual_seed(0)
random.seed(0)
to_b, to_a = generator().to(device), generator().to(device)
judge_a, judge_b = discriminator().to(device), discriminator().to(device)
makers = torch.optim.Adam(itertools.chain(to_a.parameters(), to_b.parameters()), lr=2e-4, betas=(0.5, 0.999))
judges = torch.optim.Adam(itertools.chain(judge_a.parameters(), judge_b.parameters()), lr=2e-4, betas=(0.5, 0.999))
pool_a, pool_b = Pool(8), Pool(8)
for step in range(8):
    real_a, real_b = torch.rand(2, 3, 64, 64).to(device), torch.rand(2, 3, 64, 64).to(device)
    for judge in (judge_a, judge_b):
        judge.requires_grad_(False)
    makers.zero_grad()
    fake_b, fake_a = to_b(real_a), to_a(real_b)
    loss = F.l1_loss(to_a(real_a), real_a) + F.l1_loss(to_b(real_b), real_b)
    loss = loss + 10 * (F.l1_loss(to_a(fake_b), real_a) + F.l1_loss(to_b(fake_a), real_b))
    for judge, fake in ((judge_b, fake_b), (judge_a, fake_a)):
        score = judge(fake)
        loss = loss + F.mse_loss(score, torch.ones_like(score))
    loss.backward()
    makers.step()
    for judge in (judge_a, judge_b):
        judge.requires_grad_(True)
    judges.zero_grad()
    for judge, real, fake, pool in ((judge_a, real_a, fake_a, pool_a), (judge_b, real_b, fake_b, pool_b)):
        yes, no = judge(real), judge(pool.query(fake.detach()))
        (0.5 * (F.mse_loss(yes, torch.ones_like(yes)) + F.mse_loss(no, torch.zeros_like(no)))).backward()
    judges.step()
    print(step, loss.item())
