"""Two towers of sparse embeddings over bags of items, with a sparse and a dense optimizer."""

import numpy as np
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
numbers = np.random.default_rng(9)


def bags(count, items):
    sizes = numbers.integers(1, 40, count)
    offsets = np.concatenate([[0], sizes.cumsum()[:-1]])
    return torch.from_numpy(numbers.integers(0, items, sizes.sum())).to(device), torch.from_numpy(offsets).to(device)


torch.manual_seed(0)
users = nn.EmbeddingBag(60000, 64, mode="mean", sparse=True).to(device)
items = nn.EmbeddingBag(30000, 64, mode="mean", sparse=True).to(device)
towers = nn.ModuleList([nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(2)]).to(device)
sparse = torch.optim.SparseAdam([*users.parameters(), *items.parameters()], lr=1e-3)
dense = torch.optim.Adam(towers.parameters(), lr=1e-3)
for _ in range(5):
    one, two = towers[0](users(*bags(1024, 60000))), towers[1](items(*bags(1024, 30000)))
    scores = one @ two.T / 8
    loss = nn.functional.cross_entropy(scores, torch.arange(1024, device=device))
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
