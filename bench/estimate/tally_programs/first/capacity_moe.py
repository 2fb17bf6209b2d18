"""A language model with a mixture of experts: top-2 routing, and a capacity above which tokens are dropped."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Expert(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, data):
        return self.down(F.silu(self.up(data)))


class Experts(nn.Module):
    def __init__(self, width, count=8, factor=1.25):
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList([Expert(width) for _ in range(count)])
        self.factor = factor

    def forward(self, data):
        tokens = data.reshape(-1, data.shape[-1])
        probabilities = self.router(tokens).softmax(-1)
        weights, chosen = probabilities.topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        capacity = int(self.factor * 2 * tokens.shape[0] / len(self.experts))
        result = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == index)
            rows, slots = rows[:capacity], slots[:capacity]
            if rows.numel() == 0:
                continue
            result.index_add_(0, rows, expert(tokens[rows]) * weights[rows, slots].unsqueeze(-1))
        share = F.one_hot(chosen[:, 0], len(self.experts)).float().mean(0)
        balance = len(self.experts) * (share * probabilities.mean(0)).sum()
        return result.view_as(data), balance


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.experts = Experts(width)

    def forward(self, data):
        length = data.shape[1]
        mask = torch.triu(torch.full((length, length), float("-inf"), device=data.device), 1)
        normed = self.first(data)
        data = data + self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        mixed, balance = self.experts(self.second(data))
        return data + mixed, balance


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(2500, 144)
        self.blocks = nn.ModuleList([Block(144) for _ in range(3)])
        self.head = nn.Linear(144, 2500)

    def forward(self, words):
        hidden, balances = self.words(words), 0
        for block in self.blocks:
            hidden, balance = block(hidden)
            balances = balances + balance
        return self.head(hidden), balances


torch.manual_seed(0)
model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(5):
    words = torch.randint(2500, (10, 129)).to(device)
    scores, balances = model(words[:, :-1])
    loss = F.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten()) + 0.01 * balances
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
