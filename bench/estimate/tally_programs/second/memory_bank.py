"""Contrastive learning with two towers, a momentum tower, and a queue of negatives (MoCo)."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Contrast(nn.Module):
    def __init__(self, queue=8192, width=128):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(900, 1100), nn.BatchNorm1d(1100), nn.ReLU(), nn.Linear(1100, width))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(width, queue), dim=0))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys):
        place = int(self.place)
        self.queue[:, place : place + keys.shape[0]] = keys.T
        self.place[0] = (place + keys.shape[0]) % self.queue.shape[1]

    def forward(self, one, two):
        query = F.normalize(self.query(one), dim=1)
        with torch.no_grad():
            for mine, theirs in zip(self.key.parameters(), self.query.parameters(), strict=True):
                mine.data = mine.data * 0.99 + theirs.data * 0.01
            order = torch.randperm(two.shape[0], device=two.device)
            key = F.normalize(self.key(two[order]), dim=1)[order.argsort()]
        positive = torch.einsum("nc,nc->n", query, key).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", query, self.queue.clone().detach())
        scores = torch.cat([positive, negative], 1) / 0.2
        self.enqueue(key)
        return scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device)


torch.manual_seed(0)
model = Contrast().to(device)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.03, momentum=0.9)
for _ in range(5):
    base = torch.rand(256, 900).to(device)
    one, two = base + 0.1 * torch.randn_like(base), base * (torch.rand_like(base) > 0.2)
    scores, labels = model(one, two)
    loss = F.cross_entropy(scores, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
