"""Texts of very different lengths in the order of a corpus: the longest comes late, and no loader knows it before."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def corpus(count):
    numbers = np.random.default_rng(5)
    for place in range(count):
        length = 480 if place == 43 else int(min(12 + numbers.pareto(1.6) * 30, 320))
        yield torch.from_numpy(numbers.integers(1, 3000, (8, length)))


class Reader(nn.Module):
    def __init__(self, width=160, depth=3):
        super().__init__()
        self.words = nn.Embedding(3000, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "norm": nn.LayerNorm(width), "near": nn.Conv1d(width, width, 5, padding=4, groups=8),
                "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width),
            })
            for _ in range(depth)
        )  # fmt: skip
        self.head = nn.Linear(width, 3000)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            near = layer["near"](layer["norm"](x).transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
            x = x + layer["down"](F.silu(layer["up"](near)))
        return self.head(x)


torch.manual_seed(0)
model = Reader().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for ids in corpus(48):
    ids = ids.to(device)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
