"""A decoder of which each block is recomputed in the backward pass."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.dropout = heads, nn.Dropout(0.1)

    def forward(self, data):
        batch, length, width = data.shape
        parts = self.qkv(self.norms[0](data)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool, device=data.device), 1)
        mixed = self.dropout(scores.masked_fill(mask, float("-inf")).softmax(-1)) @ v
        data = data + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return data + self.dropout(self.down(nn.functional.gelu(self.up(self.norms[1](data)))))


class Decoder(nn.Module):
    def __init__(self, vocabulary=3000, width=192, layers=6):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(1, 192, width))
        self.blocks = nn.ModuleList([Block(width, 6) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, words):
        hidden = self.words(words) + self.places[:, : words.shape[1]]
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        return self.head(self.norm(hidden))


torch.manual_seed(0)
model = Decoder().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    words = torch.randint(3000, (8, 193)).to(device)
    scores = model(words[:, :-1])
    loss = nn.functional.cross_entropy(scores.reshape(-1, 3000), words[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
