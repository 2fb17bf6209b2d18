"""A radiance field: coarse and fine samples along rays, and now and then a whole picture in parts."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Field(nn.Module):
    def __init__(self, width=96, octaves=6):
        super().__init__()
        self.register_buffer("octaves", 2.0 ** torch.arange(octaves) * torch.pi)
        self.body = nn.Sequential(
            nn.Linear(3 + 6 * octaves, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width),
            nn.ReLU(),
        )  # fmt: skip
        self.density, self.color = (
            nn.Linear(width, 1),
            nn.Sequential(nn.Linear(width + 3, 64), nn.ReLU(), nn.Linear(64, 3)),
        )

    def forward(self, points, directions):
        waves = (points[..., None] * self.octaves).flatten(-2)
        hidden = self.body(torch.cat([points, waves.sin(), waves.cos()], -1))
        seen = torch.cat([hidden, directions[:, None].expand(-1, points.shape[1], -1)], -1)
        return self.density(hidden).squeeze(-1).relu(), self.color(seen).sigmoid()


def composite(density, color, depths):
    apart = torch.cat([depths[:, 1:] - depths[:, :-1], torch.full_like(depths[:, :1], 1e3)], 1)
    alpha = 1 - torch.exp(-density * apart)
    through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1] + 1e-10], 1), 1)
    weights = alpha * through
    return (weights[..., None] * color).sum(1), weights


def finer(depths, weights, count):
    middles = 0.5 * (depths[:, 1:] + depths[:, :-1])
    shares = weights[:, 1:-1] + 1e-5
    steps = torch.cumsum(shares / shares.sum(1, keepdim=True), 1)
    steps = torch.cat([torch.zeros_like(steps[:, :1]), steps], 1)
    drawn = torch.rand(len(depths), count, device=depths.device)
    right = torch.searchsorted(steps, drawn, right=True).clamp(1, steps.shape[1] - 1)
    low, high = (steps.gather(1, right - 1), steps.gather(1, right))
    start, end = middles.gather(1, right - 1), middles.gather(1, right.clamp(max=middles.shape[1] - 1))
    return start + (drawn - low) / (high - low).clamp(min=1e-5) * (end - start)


def rays_to_colors(coarse, fine, origins, directions, count=24, more=40):
    depths = torch.linspace(2, 6, count, device=origins.device).expand(len(origins), -1)
    depths = depths + torch.rand_like(depths) * 4 / count
    first, weights = composite(*coarse(origins[:, None] + depths[..., None] * directions[:, None], directions), depths)
    depths = torch.cat([depths, finer(depths, weights.detach(), more)], 1).sort(1).values
    return first, composite(*fine(origins[:, None] + depths[..., None] * directions[:, None], directions), depths)[0]


torch.manual_seed(0)
coarse, fine = Field().to(device), Field().to(device)
optimizer = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], lr=5e-4)
for step in range(1, 13):
    origins, directions = torch.randn(320, 3, device=device), torch.randn(320, 3, device=device)
    wanted = torch.rand(320, 3, device=device)
    first, second = rays_to_colors(coarse, fine, origins, directions)
    loss = (first - wanted).square().mean() + (second - wanted).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        with torch.no_grad():
            origins, directions = torch.randn(48 * 48, 3, device=device), torch.randn(48 * 48, 3, device=device)
            parts = zip(origins.split(1536), directions.split(1536), strict=True)
            picture = torch.cat([rays_to_colors(coarse, fine, *part)[1] for part in parts]).view(48, 48, 3)
        print(step, picture.mean().item())
