"""Train a small diffusion model with an average of its weights, and draw samples with the average."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Res(nn.Module):
    def __init__(self, inputs, outputs, time=128):
        super().__init__()
        self.one, self.two = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.first, self.second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, data, time):
        hidden = self.first(F.silu(self.one(data))) + self.time(F.silu(time))[:, :, None, None]
        return self.second(F.silu(self.two(hidden))) + self.skip(data)


class UNet(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down1, self.down2 = Res(width, width), Res(width, 2 * width)
        self.middle = Res(2 * width, 2 * width)
        self.up2, self.up1 = Res(4 * width, width), Res(2 * width, width)
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, data, time):
        bands = torch.exp(-math.log(10000) * torch.arange(32, device=data.device) / 32)
        waves = time[:, None].float() * bands
        time = self.time(torch.cat([waves.sin(), waves.cos()], 1))
        one = self.down1(self.enter(data), time)
        two = self.down2(F.avg_pool2d(one, 2), time)
        low = self.middle(F.avg_pool2d(two, 2), time)
        low = self.up2(torch.cat([F.interpolate(low, scale_factor=2), two], 1), time)
        return self.leave(self.up1(torch.cat([F.interpolate(low, scale_factor=2), one], 1), time))


torch.manual_seed(0)
betas = torch.linspace(1e-4, 0.02, 100, device=device)
alphas = (1 - betas).cumprod(0)
model = UNet().to(device)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
for step in range(5):
    frames = torch.rand(12, 3, 40, 40).to(device) * 2 - 1
    time = torch.randint(100, (12,), device=device)
    noise = torch.randn_like(frames)
    level = alphas[time][:, None, None, None]
    loss = F.mse_loss(model(level.sqrt() * frames + (1 - level).sqrt() * noise, time), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    if step == 4:
        with torch.no_grad():
            drawn = torch.randn(20, 3, 40, 40, device=device)
            for t in reversed(range(90, 100)):
                guess = average(drawn, torch.full((20,), t, device=device))
                drawn = (drawn - betas[t] / (1 - alphas[t]).sqrt() * guess) / (1 - betas[t]).sqrt()
                if t:
                    drawn = drawn + betas[t].sqrt() * torch.randn_like(drawn)
