"""Trainings of compiled models with equal blocks, on the CPU: ``python cached_train.py MODEL``."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, BLOCKS, HEADS, LENGTH, BATCH, WORDS = 128, 3, 4, 64, 8, 512


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended values."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act, self.proj = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the values of the second layer."""
        return self.proj(self.act(self.fc(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A block of a GPT."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = norm(WIDTH), Attention(), norm(WIDTH), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        """Return the values with what attention and MLP add."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """A small GPT."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.wte, self.h = nn.Embedding(WORDS, WIDTH), nn.ModuleList([Block(norm) for _ in range(BLOCKS)])
        self.ln_f, self.head = norm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        """Return the loss of the next words."""
        x = self.wte(words)
        for block in self.h:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())


class Residual(nn.Module):
    """A block of a residual MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the values with what the block adds."""
        return x + self.down(F.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


class Mlps(nn.Module):
    """A residual MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Residual() for _ in range(BLOCKS)])
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss."""
        for layer in self.layers:
            x = layer(x)
        return self.head(x).square().mean()  # type: ignore[no-any-return]


class Convolutions(nn.Module):
    """A small residual network of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.convs = nn.ModuleList([nn.Conv2d(32, 32, 3, padding=1) for _ in range(BLOCKS)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(32) for _ in range(BLOCKS)])
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss."""
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(norm(conv(x)))
        return self.head(x.mean((2, 3))).square().mean()  # type: ignore[no-any-return]


def _words() -> Tensor:
    return torch.randint(WORDS, (BATCH, LENGTH))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "gpt": (Gpt, _words),
    "gpt_rms": (lambda: Gpt(nn.RMSNorm), _words),
    "residual_mlp": (Mlps, lambda: torch.randn(512, WIDTH)),
    "convolutions": (Convolutions, lambda: torch.randn(16, 3, 16, 16)),
}
AUTOCAST = "_autocast"
"""Ends the names of models that are trained under autocast."""
MODELS |= {f"{name}{AUTOCAST}": MODELS[name] for name in ("gpt", "residual_mlp", "convolutions")}
"""Name -> model, and a batch."""


def main() -> None:
    """Train the model that the command line names for six steps."""
    make, batch = MODELS[sys.argv[1]]
    under_autocast = sys.argv[1].endswith(AUTOCAST)
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = torch.compile(model)
    for _ in range(6):
        with torch.autocast("cpu", torch.bfloat16, enabled=under_autocast):
            loss = step(batch())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
