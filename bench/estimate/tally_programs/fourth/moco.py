"""MoCo: a momentum encoder, a queue of negatives that is a buffer, and shuffled batch normalization."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


def encoder():
    layers, inside = [], 3
    for width in (32, 64, 128):
        layers += [nn.Conv2d(inside, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        inside = width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)
    )


class MoCo(nn.Module):
    def __init__(self, size=16384, momentum=0.99, temperature=0.2):
        super().__init__()
        self.query, self.momentum, self.temperature = encoder(), momentum, temperature
        self.key = copy.deepcopy(self.query)
        for parameter in self.key.parameters():
            parameter.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(128, size), dim=0))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def update(self):
        for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
            slow.data = slow.data * self.momentum + fast.data * (1.0 - self.momentum)

    @torch.no_grad()
    def enqueue(self, keys):
        place = int(self.place)
        self.queue[:, place : place + keys.shape[0]] = keys.T
        self.place[0] = (place + keys.shape[0]) % self.queue.shape[1]

    def forward(self, first, second):
        queries = F.normalize(self.query(first), dim=1)
        with torch.no_grad():
            self.update()
            order = torch.randperm(len(second), device=second.device)
            keys = F.normalize(self.key(second[order]), dim=1)[torch.argsort(order)]
        positive = torch.einsum("nc,nc->n", [queries, keys]).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", [queries, self.queue.clone().detach()])
        scores = torch.cat([positive, negative], dim=1) / self.temperature
        self.enqueue(keys)
        return scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device)


torch.manual_seed(0)
model = MoCo().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
right = seen = 0
for _ in range(6):
    scores, labels = model(torch.randn(128, 3, 48, 48).to(device), torch.randn(128, 3, 48, 48).to(device))
    loss = F.cross_entropy(scores, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    _, found = scores.topk(5, 1)
    right += found.eq(labels.view(-1, 1)).any(1).sum().item()
    seen += len(labels)
print(right / seen)
