"""A curriculum: images grow and the batch shrinks from stage to stage, and layers are unfrozen."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Patches(nn.Module):
    def __init__(self, width=160, depth=4):
        super().__init__()
        self.enter = nn.Conv2d(3, width, 8, 8)
        self.places = nn.Parameter(torch.randn(1, width, 8, 8) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 5, 2 * width, 0.0, batch_first=True)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 5, 2 * width, 0.1, batch_first=True) for _ in range(depth)
        )
        self.head = nn.Linear(width, 50)
        del layer

    def forward(self, images):
        x = self.enter(images)
        x = x + F.interpolate(self.places, size=x.shape[-2:], mode="bicubic", align_corners=False)
        x = x.flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


torch.manual_seed(0)
model = Patches().to(device)
for size, batch, frozen in ((48, 24, 3), (80, 16, 1), (128, 8, 0)):
    for place, layer in enumerate(model.layers):
        layer.requires_grad_(place >= frozen)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-4)
    loader = DataLoader(TensorDataset(torch.rand(4 * batch, 3, size, size), torch.randint(50, (4 * batch,))), batch)
    for images, labels in loader:
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
