"""A language model whose batches have a budget of tokens, with gradients accumulated over parts of different shapes."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, width=192, heads=6):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.gate, self.up, self.down = nn.Linear(width, 512), nn.Linear(width, 512), nn.Linear(512, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        seen = self.second(x)
        return x + self.down(F.silu(self.gate(seen)) * self.up(seen))


class Model(nn.Module):
    def __init__(self, words=5000, width=192):
        super().__init__()
        self.words, self.blocks = nn.Embedding(words, width), nn.ModuleList(Block(width) for _ in range(3))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batches(lengths, budget):
    batch, longest = [], 0
    for length in sorted(lengths):
        if batch and max(longest, length) * (len(batch) + 1) > budget:
            yield batch
            batch, longest = [], 0
        batch.append(length)
        longest = max(longest, length)
    yield batch


torch.manual_seed(0)
lengths = torch.randint(10, 200, (160,)).tolist()
plan = list(batches(lengths, 1500))
order = torch.randperm(len(plan)).tolist()
model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
accumulate = 4
for number, place in enumerate(order):
    rows = plan[place]
    ids = torch.zeros(len(rows), max(rows), dtype=torch.long)
    for row, length in enumerate(rows):
        ids[row, :length] = torch.randint(1, 5000, (length,))
    ids = ids.to(device)
    scores = model(ids[:, :-1])
    loss = F.cross_entropy(scores.reshape(-1, scores.size(-1)), ids[:, 1:].reshape(-1), ignore_index=0)
    (loss / accumulate).backward()
    if (number + 1) % accumulate == 0 or number + 1 == len(order):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
