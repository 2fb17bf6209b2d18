"""Soft prompts and adapters for a frozen language model, then answers with a cache of keys and values that grows."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, width=256, heads=8):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 1024), nn.GELU(), nn.Linear(1024, width))
        self.adapter = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, width))

    def forward(self, x, cache=None):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if "k" in cache:
                k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
            cache["k"], cache["v"] = k, v
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.adapter(self.mlp(self.second(x)))


class Model(nn.Module):
    def __init__(self, words=6000, width=256, layers=4):
        super().__init__()
        self.words, self.blocks = nn.Embedding(words, width), nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.prompt = nn.Parameter(torch.randn(16, width) * 0.02)

    def forward(self, ids, caches=None, with_prompt=True):
        x = self.words(ids)
        if with_prompt:
            x = torch.cat([self.prompt.expand(len(ids), -1, -1), x], 1)
        for place, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[place])
        return self.head(self.norm(x))


torch.manual_seed(0)
model = Model().to(device)
for name, parameter in model.named_parameters():
    parameter.requires_grad = "adapter" in name or name == "prompt"
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
for _ in range(4):
    ids = torch.randint(6000, (6, 128), device=device)
    scores = model(ids)[:, 16:-1]
    loss = F.cross_entropy(scores.reshape(-1, 6000), ids[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    ids, caches = torch.randint(6000, (48, 32), device=device), [{} for _ in model.blocks]
    scores, done = model(ids, caches)[:, -1], torch.zeros(48, dtype=torch.bool, device=device)
    for _ in range(40):
        best = scores.topk(50).values[:, -1:]
        chances = scores.masked_fill(scores < best, float("-inf")).softmax(-1)
        word = torch.multinomial(chances, 1)
        done |= word.squeeze(1) == 3
        if done.all():
            break
        scores = model(word, caches, with_prompt=False)[:, -1]
