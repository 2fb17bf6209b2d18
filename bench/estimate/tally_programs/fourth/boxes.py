"""A detector with anchors: boxes matched by overlap, the hardest negatives, and suppression by hand."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def overlaps(first, second):
    low = torch.max(first[:, None, :2], second[None, :, :2])
    high = torch.min(first[:, None, 2:], second[None, :, 2:])
    both = (high - low).clamp(min=0).prod(2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1) for boxes in (first, second)]
    return both / (areas[0][:, None] + areas[1][None] - both + 1e-6)


class Detector(nn.Module):
    def __init__(self, kinds=10, anchors=3):
        super().__init__()
        self.body = nn.Sequential(
            *(
                layer
                for a, b in ((3, 24), (24, 48), (48, 96))
                for layer in (nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.SiLU())
            )
        )
        self.score, self.box = (
            nn.Conv2d(96, anchors * (kinds + 1), 3, padding=1),
            nn.Conv2d(96, anchors * 4, 3, padding=1),
        )
        self.kinds = kinds

    def forward(self, images):
        found = self.body(images)
        scores = self.score(found).permute(0, 2, 3, 1).reshape(len(images), -1, self.kinds + 1)
        return scores, self.box(found).permute(0, 2, 3, 1).reshape(len(images), -1, 4)


def suppressed(boxes, scores, limit=0.5):
    order, kept = scores.argsort(descending=True), []
    while order.numel() > 0:
        first = order[0]
        kept.append(first)
        if order.numel() == 1:
            break
        rest = order[1:]
        order = rest[overlaps(boxes[first][None], boxes[rest])[0] <= limit]
    return torch.stack(kept)


torch.manual_seed(0)
model = Detector().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
centers = (
    torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"), -1).reshape(-1, 1, 2) * 8 + 4
)
sizes = torch.tensor([[8.0, 8.0], [16.0, 16.0], [24.0, 24.0]])
anchors = torch.cat([centers - sizes / 2, centers + sizes / 2], -1).reshape(-1, 4).to(device)
for _ in range(5):
    images = torch.rand(8, 3, 128, 128).to(device)
    scores, boxes = model(images)
    total = torch.zeros((), device=device)
    for row in range(len(images)):
        corners = torch.rand(int(torch.randint(1, 9, ())), 2, device=device) * 90
        truth = torch.cat([corners, corners + 8 + 22 * torch.rand_like(corners)], 1)
        kinds = torch.randint(1, 11, (len(truth),), device=device)
        best, match = overlaps(anchors, truth).max(1)
        positive = best > 0.4
        labels = torch.where(positive, kinds[match], 0)
        losses = F.cross_entropy(scores[row], labels, reduction="none")
        wanted = 3 * max(int(positive.sum()), 1)
        hardest = losses[~positive].topk(min(wanted, int((~positive).sum()))).values
        total = total + losses[positive].sum() + hardest.sum()
        total = total + F.smooth_l1_loss(
            boxes[row][positive], truth[match[positive]] - anchors[positive], reduction="sum"
        )
    optimizer.zero_grad()
    (total / len(images)).backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    scores, boxes = model(torch.rand(2, 3, 128, 128).to(device))
    for row in range(2):
        chances, kinds = scores[row].softmax(-1)[:, 1:].max(-1)
        chosen = chances.topk(60).indices
        print(len(suppressed(anchors[chosen] + boxes[row][chosen], chances[chosen])))
