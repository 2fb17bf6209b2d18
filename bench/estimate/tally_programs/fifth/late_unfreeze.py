"""Fine-tuning in phases by epoch: the head alone, then the last blocks, then all, with larger images at the end."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPOCHS, UNFREEZE_LAST, UNFREEZE_ALL, LARGE = 9, 3, 5, 7


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(block(a, b) for a, b in ((3, 32), (32, 64), (64, 128), (128, 256)))
        self.head = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 37))

    def forward(self, images):
        for one in self.blocks:
            images = one(images)
        return self.head(images.mean((2, 3)))


def choose(model, epoch):
    for number, one in enumerate(model.blocks):
        one.requires_grad_(epoch >= UNFREEZE_ALL or (epoch >= UNFREEZE_LAST and number >= 2))
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3 if epoch < 5 else 1e-4)


torch.manual_seed(0)
model = Net().to(device)
data = TensorDataset(torch.rand(96, 3, 64, 64), torch.randint(37, (96,)))
loader = DataLoader(data, 24, shuffle=True)
optimizer = choose(model, 0)
for epoch in range(EPOCHS):
    if epoch in (UNFREEZE_LAST, UNFREEZE_ALL):
        optimizer = choose(model, epoch)
    model.train()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        if epoch >= LARGE:
            images = F.interpolate(images, size=(112, 112), mode="bilinear", align_corners=False)
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
