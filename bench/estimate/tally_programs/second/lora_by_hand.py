"""Fine-tune a frozen decoder with low-rank adapters written by hand, with gradient accumulation."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class LoRA(nn.Module):
    def __init__(self, inner, rank=6, alpha=12):
        super().__init__()
        self.inner, self.scale = inner.requires_grad_(False), alpha / rank
        self.a = nn.Parameter(torch.randn(rank, inner.in_features) / rank)
        self.b = nn.Parameter(torch.zeros(inner.out_features, rank))
        self.dropout = nn.Dropout(0.05)

    def forward(self, data):
        return self.inner(data) + self.scale * (self.dropout(data) @ self.a.T @ self.b.T)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.one, self.two = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, data):
        normed = self.one(data)
        q, k, v = (part(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
        length = data.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=data.device).tril()
        mixed = scores.masked_fill(~causal, float("-inf")).softmax(-1) @ v
        data = data + self.o(mixed.transpose(1, 2).flatten(2))
        normed = self.two(data)
        return data + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Decoder(nn.Module):
    def __init__(self, words=6000, width=288, layers=4):
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.RMSNorm(width)
        self.blocks = nn.ModuleList([Block(width, 6) for _ in range(layers)])

    def forward(self, words):
        hidden = self.words(words)
        for block in self.blocks:
            hidden = block(hidden)
        return self.norm(hidden) @ self.words.weight.T


torch.manual_seed(0)
model = Decoder().requires_grad_(False)
for block in model.blocks:
    for name in ("q", "v", "down"):
        setattr(block, name, LoRA(getattr(block, name)))
model.to(device)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
for step in range(8):
    words = torch.randint(6000, (5, 161)).to(device)
    loss = F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()) / 2
    loss.backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
