"""A Perceiver: few latent vectors attend to many inputs, again and again with shared weights."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Attend(nn.Module):
    def __init__(self, width, context, heads):
        super().__init__()
        self.norm, self.context_norm = nn.LayerNorm(width), nn.LayerNorm(context)
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(context, 2 * width, bias=False)
        self.out, self.heads = nn.Linear(width, width), heads

    def forward(self, data, context):
        q = self.q(self.norm(data)).unflatten(-1, (self.heads, -1))
        k, v = self.kv(self.context_norm(context)).unflatten(-1, (2, self.heads, -1)).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        return data + self.out(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2))


class Perceiver(nn.Module):
    def __init__(self, latents=96, width=192, inputs=35, rounds=3):
        super().__init__()
        self.latents, self.rounds = nn.Parameter(torch.randn(latents, width) * 0.02), rounds
        self.cross, self.own = Attend(width, inputs, 1), nn.ModuleList([Attend(width, width, 6) for _ in range(2)])
        self.mlps = nn.ModuleList(
            [
                nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                for _ in range(3)
            ]
        )
        self.head = nn.Linear(width, 20)

    def forward(self, points):
        bands = torch.linspace(1, 16, 8, device=points.device)
        waves = points[..., :2].unsqueeze(-1) * bands
        context = torch.cat([points, waves.sin().flatten(2), waves.cos().flatten(2)], -1)
        data = self.latents.expand(points.shape[0], -1, -1)
        for _ in range(self.rounds):
            data = self.cross(data, context)
            data = data + self.mlps[0](data)
            for attend, mlp in zip(self.own, self.mlps[1:], strict=True):
                data = attend(data, data)
                data = data + mlp(data)
        return self.head(data.mean(1))


torch.manual_seed(0)
model = Perceiver().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(4):
    points, labels = torch.rand(7, 2300, 3).to(device), torch.randint(20, (7,)).to(device)
    loss = nn.functional.cross_entropy(model(points), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
