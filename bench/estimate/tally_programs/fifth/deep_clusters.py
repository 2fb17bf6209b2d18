"""Deep clustering: each epoch groups the features of all images by k-means, and trains on the groups as labels."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IMAGES, GROUPS, BATCH = 768, 24, 64


class Features(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 5, 2, 2), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64),
            nn.ReLU(), nn.Flatten(), nn.Linear(64 * 8 * 8, width),
        )  # fmt: skip
        self.head = nn.Linear(width, GROUPS)

    def forward(self, images):
        return self.body(images)


@torch.no_grad()
def k_means(data, rounds=12):
    centers = data[torch.randperm(len(data), device=data.device)[:GROUPS]]
    for _ in range(rounds):
        nearest = torch.cdist(data, centers).argmin(1)
        counts = torch.bincount(nearest, minlength=GROUPS)
        sums = torch.zeros_like(centers).index_add_(0, nearest, data)
        moved = sums / counts.clamp(min=1)[:, None]
        empty = (counts == 0).nonzero().flatten()
        if len(empty):
            moved[empty] = data[torch.randint(len(data), (len(empty),), device=data.device)]
        if torch.allclose(moved, centers, atol=1e-4):
            break
        centers = moved
    return nearest


torch.manual_seed(0)
images = torch.rand(IMAGES, 1, 32, 32, device=device)
model = Features().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
for _epoch in range(3):
    model.eval()
    with torch.no_grad():
        features = F.normalize(torch.cat([model(part) for part in images.split(256)]), dim=1)
    groups = k_means(features)
    shares = torch.bincount(groups, minlength=GROUPS).float()
    model.head.reset_parameters()
    model.train()
    order = torch.multinomial(1 / shares[groups].clamp(min=1), IMAGES, replacement=True)
    for rows in order.split(BATCH):
        loss = F.cross_entropy(model.head(F.relu(model(images[rows]))), groups[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
