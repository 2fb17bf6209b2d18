"""A Lightning training with validation, a scheduler and gradient clipping."""

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tiles(Dataset):
    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        numbers = np.random.default_rng(self.seed + index)
        return torch.from_numpy(numbers.random((3, 48, 48), dtype=np.float32)), index % 10


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])

    def forward(self, data):
        hidden = torch.relu(self.norms[0](self.first(data)))
        return torch.relu(data + self.norms[1](self.second(hidden)))


class Tagger(L.LightningModule):
    def __init__(self, width=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            Block(width),
            nn.MaxPool2d(2),
            Block(width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, 10),
        )

    def training_step(self, batch, _):
        frames, labels = batch
        loss = nn.functional.cross_entropy(self.net(frames), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        frames, labels = batch
        scores = self.net(frames)
        self.log("val_loss", nn.functional.cross_entropy(scores, labels))
        self.log("val_acc", (scores.argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)}


if __name__ == "__main__":
    L.seed_everything(0)
    trainer = L.Trainer(
        max_steps=6,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        val_check_interval=3,
        limit_val_batches=2,
        devices=1,
    )
    trainer.fit(Tagger(), DataLoader(Tiles(200, 0), 20, shuffle=True), DataLoader(Tiles(60, 1000), 32))
