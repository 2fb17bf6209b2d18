"""Text lines with CTC: convolutions over images of different widths, and greedy decoding after each epoch."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Lines(Dataset):
    def __init__(self, count):
        numbers = torch.Generator().manual_seed(2)
        widths = torch.randint(60, 260, (count,), generator=numbers).tolist()
        self.images = [torch.rand(1, 32, width, generator=numbers) for width in widths]
        self.texts = [torch.randint(1, 80, (max(width // 16, 1),), generator=numbers) for width in widths]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, place):
        return self.images[place], self.texts[place]


def together(examples):
    images, texts = zip(*examples, strict=True)
    widest = max(image.shape[-1] for image in images)
    padded = torch.stack([F.pad(image, (0, widest - image.shape[-1])) for image in images])
    widths = torch.tensor([image.shape[-1] // 4 for image in images])
    return padded, torch.cat(texts), widths, torch.tensor([len(text) for text in texts])


class Reader(nn.Module):
    def __init__(self, signs=80):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 96, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d((1, None)),
        )
        self.mixer = nn.Sequential(nn.Conv1d(96, 192, 9, padding=4, groups=96), nn.GELU(), nn.Conv1d(192, 96, 1))
        self.leave = nn.Linear(96, signs)

    def forward(self, images):
        columns = self.body(images).squeeze(2)
        columns = columns + self.mixer(columns)
        return self.leave(columns.permute(2, 0, 1)).log_softmax(-1)


torch.manual_seed(0)
model = Reader().to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
loss_of = nn.CTCLoss(zero_infinity=True)
loader = DataLoader(Lines(80), batch_size=8, shuffle=True, collate_fn=together)
for _ in range(2):
    model.train()
    for images, texts, widths, lengths in loader:
        scores = model(images.to(device))
        loss = loss_of(scores, texts.to(device), widths, lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        images, *_ = next(iter(loader))
        best = model(images.to(device)).argmax(-1).T
        print([len(torch.unique_consecutive(row[row != 0])) for row in best])
