"""Class-conditional diffusion with an average of weights, and samples drawn with guidance after each epoch."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, inside, outside, width=128):
        super().__init__()
        self.first, self.second = nn.Conv2d(inside, outside, 3, padding=1), nn.Conv2d(outside, outside, 3, padding=1)
        self.norm, self.shift = nn.GroupNorm(8, outside), nn.Linear(width, 2 * outside)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x, time):
        scale, shift = self.shift(time)[..., None, None].chunk(2, 1)
        hidden = self.norm(self.first(F.silu(x))) * (1 + scale) + shift
        return self.skip(x) + self.second(F.silu(hidden))


class Denoiser(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.label, self.time = nn.Embedding(11, 128), nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128))
        self.down, self.middle, self.up = Block(width, 64), Block(64, 64), Block(64 + width, width)

    def forward(self, x, steps, labels):
        angles = steps[:, None].float() * torch.exp(torch.linspace(0, -9, 32, device=x.device))
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1)) + self.label(labels)
        first = self.enter(x)
        low = self.middle(self.down(F.avg_pool2d(first, 2), time), time)
        return self.leave(self.up(torch.cat([F.interpolate(low, scale_factor=2), first], 1), time))


@torch.no_grad()
def sample(model, alphas, count=24, guidance=3.0):
    model.eval()
    x = torch.randn(count, 3, 32, 32, device=device)
    labels, none = torch.arange(count, device=device) % 10, torch.full((count,), 10, device=device)
    for step in reversed(range(0, 200, 40)):
        steps = torch.full((2 * count,), step, device=device)
        noise, plain = model(torch.cat([x, x]), steps, torch.cat([labels, none])).chunk(2)
        noise = plain + guidance * (noise - plain)
        x = (x - (1 - alphas[step]).sqrt() * noise) / alphas[step].sqrt()
        if step > 0:
            x = x + 0.1 * torch.randn_like(x)
    return x.clamp(-1, 1).cpu()


torch.manual_seed(0)
model = Denoiser().to(device)
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 200), 0).to(device)
loader = DataLoader(TensorDataset(torch.randn(36, 3, 32, 32), torch.randint(10, (36,))), batch_size=12, shuffle=True)
for _ in range(3):
    model.train()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        labels = torch.where(torch.rand(len(labels), device=device) < 0.1, 10, labels)
        steps, noise = torch.randint(0, 200, (len(images),), device=device), torch.randn_like(images)
        level = alphas[steps].view(-1, 1, 1, 1)
        loss = F.mse_loss(model(level.sqrt() * images + (1 - level).sqrt() * noise, steps, labels), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.01)
    sample(average, alphas)
