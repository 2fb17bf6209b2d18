"""A mixture of experts without a capacity: tokens are sorted by expert, counted, split and put back."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Experts(nn.Module):
    def __init__(self, width=160, count=8, best=2):
        super().__init__()
        self.router, self.best, self.count = nn.Linear(width, count, bias=False), best, count
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(count)
        )

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        chances = self.router(flat).softmax(-1)
        weights, chosen = chances.topk(self.best, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.count)
        tokens = flat[order // self.best]
        parts = tokens.split(counts.tolist())
        made = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        made = made * weights.flatten()[order].unsqueeze(-1)
        result = torch.zeros_like(flat).index_add(0, order // self.best, made)
        share = counts.float() / counts.sum()
        return result.view_as(x), self.count * (share * chances.mean(0)).sum()


class Block(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.experts = nn.MultiheadAttention(width, 4, batch_first=True), Experts(width)

    def forward(self, x, mask):
        seen = self.first(x)
        x = x + self.attention(seen, seen, seen, attn_mask=mask, need_weights=False)[0]
        made, balance = self.experts(self.second(x))
        return x + made, balance


torch.manual_seed(0)
words, blocks = nn.Embedding(3000, 160).to(device), nn.ModuleList(Block() for _ in range(3)).to(device)
head = nn.Linear(160, 3000).to(device)
optimizer = torch.optim.Adam([*words.parameters(), *blocks.parameters(), *head.parameters()], lr=1e-3)
mask = nn.Transformer.generate_square_subsequent_mask(96, device=device)
for _ in range(6):
    ids = torch.randint(3000, (12, 97), device=device)
    x, total = words(ids[:, :-1]), 0.0
    for block in blocks:
        x, balance = block(x, mask)
        total = total + 0.01 * balance
    loss = F.cross_entropy(head(x).transpose(1, 2), ids[:, 1:]) + total
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
