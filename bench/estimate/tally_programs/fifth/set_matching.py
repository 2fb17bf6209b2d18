"""Object detection as a set: queries attend to an image, and scipy assigns them to the objects."""

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KINDS = 20


class Detector(nn.Module):
    def __init__(self, width=128, queries=60):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 48, 7, 4, 3), nn.GroupNorm(8, 48), nn.ReLU(), nn.Conv2d(48, 96, 3, 2, 1), nn.GroupNorm(8, 96),
            nn.ReLU(), nn.Conv2d(96, width, 3, 2, 1),
        )  # fmt: skip
        self.places = nn.Parameter(torch.randn(64, width) * 0.1)
        self.queries = nn.Parameter(torch.randn(queries, width))
        self.mixer = nn.Transformer(width, 8, 2, 3, 256, dropout=0.0, batch_first=True)
        self.kind, self.box = (
            nn.Linear(width, KINDS + 1),
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)),
        )

    def forward(self, images):
        seen = self.body(images).flatten(2).transpose(1, 2) + self.places
        hidden = self.mixer(seen, self.queries.expand(len(images), -1, -1))
        return self.kind(hidden), self.box(hidden).sigmoid()


@torch.no_grad()
def match(kinds, boxes, wanted):
    found = []
    for scores, places, (labels, targets) in zip(kinds.softmax(-1), boxes, wanted, strict=True):
        cost = 5 * torch.cdist(places, targets, p=1) - scores[:, labels]
        found.append(tuple(torch.as_tensor(one, device=kinds.device) for one in linear_sum_assignment(cost.cpu())))
    return found


def objects(batch):
    for _ in range(batch):
        count = int(torch.randint(1, 12, ()))
        yield torch.randint(KINDS, (count,)).to(device), torch.rand(count, 4).to(device)


torch.manual_seed(0)
model = Detector().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
weights = torch.ones(KINDS + 1, device=device)
weights[-1] = 0.1
for _ in range(5):
    images, wanted = torch.rand(12, 3, 128, 128, device=device), list(objects(12))
    kinds, boxes = model(images)
    matched = match(kinds, boxes, wanted)
    labels = torch.full(kinds.shape[:2], KINDS, device=device)
    for number, ((queries, which), (known, _)) in enumerate(zip(matched, wanted, strict=True)):
        labels[number, queries] = known[which]
    chosen = torch.cat([boxes[number, queries] for number, (queries, _) in enumerate(matched)])
    targets = torch.cat([places[which] for (_, which), (_, places) in zip(matched, wanted, strict=True)])
    loss = F.cross_entropy(kinds.transpose(1, 2), labels, weights) + 5 * F.l1_loss(chosen, targets)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
