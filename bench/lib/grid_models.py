"""The grid's own small models: a tagger, a U-Net, speech, clicks, and rows of a table."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class GruTagger(nn.Module):
    """Embedding, two bidirectional GRU layers with dropout, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 256)
        self.gru = nn.GRU(256, 512, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)
        self.head = nn.Linear(1024, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, [batch, length, tags]."""
        return self.head(self.gru(self.embedding(tokens))[0])  # type: ignore[no-any-return]


class Unet(nn.Module):
    """Four levels down and up, with skips, group norms and bilinear upsampling."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(self._block(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=True))
        self.up = nn.ModuleList(self._block(a + b, b) for a, b in zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.head = nn.Conv2d(width, 8, 1)

    @staticmethod
    def _block(before: int, after: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU(),
            nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU(),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Return one logit a class and pixel."""
        skips: list[Tensor] = []
        for index, block in enumerate(self.down):
            images = block(images if index == 0 else F.max_pool2d(images, 2))
            skips.append(images)
        for block, skip in zip(self.up, skips[-2::-1], strict=True):
            grown = F.interpolate(images, scale_factor=2, mode="bilinear")
            images = block(torch.cat((grown, skip), 1))
        return self.head(images)  # type: ignore[no-any-return]


class Speech(nn.Module):
    """Strided one-dimensional convolutions over samples, then four transformer layers."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for index, (kernel, stride) in enumerate(((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))):
            layers += [nn.Conv1d(width if index else 1, width, kernel, stride), nn.GroupNorm(8, width), nn.GELU()]
        self.front = nn.Sequential(*layers)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True), 4)
        self.head = nn.Linear(width, 32)

    def forward(self, samples: Tensor) -> Tensor:
        """Return logits of the whole recording, [batch, words]."""
        return self.head(self.encoder(self.front(samples).transpose(1, 2)).mean(1))  # type: ignore[no-any-return]


class Dlrm(nn.Module):
    """Eight tables of summed embeddings beside dense features, pairwise products, an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(200_000, 64, mode="sum") for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(64 + 81, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, words: Tensor, dense: Tensor) -> Tensor:
        """Return one logit a row."""
        low = self.bottom(dense)
        rows = torch.stack([low, *(table(words[:, index]) for index, table in enumerate(self.tables))], 1)
        pairs = torch.bmm(rows, rows.transpose(1, 2)).flatten(1)
        return self.top(torch.cat((low, pairs), 1)).squeeze(1)  # type: ignore[no-any-return]


class ResidualMlp(nn.Module):
    """Dense layers with batch norm and residuals, over rows of a table."""

    def __init__(self, width: int = 1024, depth: int = 12) -> None:
        super().__init__()
        self.first = nn.Linear(256, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, rows: Tensor) -> Tensor:
        """Return logits, [batch, classes]."""
        rows = self.first(rows)
        for block in self.blocks:
            rows = rows + block(rows)
        return self.head(rows)  # type: ignore[no-any-return]
