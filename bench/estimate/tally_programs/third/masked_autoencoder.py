"""A masked autoencoder: three of four patches of an image are dropped at random before the encoder."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.one, self.two = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, data):
        q, k, v = self.qkv(self.one(data)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        data = data + self.out((weights @ v).transpose(1, 2).flatten(2))
        return data + self.mlp(self.two(data))


class Masked(nn.Module):
    def __init__(self, patches=144, patch=8, width=192, narrow=96):
        super().__init__()
        self.cut = nn.Unfold(patch, stride=patch)
        self.enter = nn.Linear(3 * patch * patch, width)
        self.places, self.back_places = (
            nn.Parameter(torch.zeros(1, patches, width)),
            nn.Parameter(torch.zeros(1, patches, narrow)),
        )
        self.encoder = nn.Sequential(*[Block(width, 6) for _ in range(4)])
        self.narrow, self.missing = nn.Linear(width, narrow), nn.Parameter(torch.zeros(1, 1, narrow))
        self.decoder = nn.Sequential(*[Block(narrow, 4) for _ in range(2)])
        self.leave = nn.Linear(narrow, 3 * patch * patch)

    def forward(self, frames):
        patches = self.cut(frames).transpose(1, 2)
        count = patches.shape[1]
        order = torch.rand(len(patches), count, device=patches.device).argsort(1)
        kept, back = order[:, : count // 4], order.argsort(1)
        data = self.enter(patches) + self.places
        data = self.encoder(data.gather(1, kept.unsqueeze(-1).expand(-1, -1, data.shape[-1])))
        data = self.narrow(data)
        data = torch.cat([data, self.missing.expand(len(data), count - data.shape[1], -1)], 1)
        data = data.gather(1, back.unsqueeze(-1).expand(-1, -1, data.shape[-1])) + self.back_places
        errors = (self.leave(self.decoder(data)) - patches).pow(2).mean(-1)
        dropped = (back >= count // 4).float()
        return (errors * dropped).sum() / dropped.sum()


torch.manual_seed(0)
model = Masked().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-4, betas=(0.9, 0.95))
for _ in range(4):
    loss = model(torch.rand(18, 3, 96, 96).to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
