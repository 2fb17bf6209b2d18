"""Five blocks whose power differs: products, convolutions, copies of large buffers, and attention."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, relu, scaled_dot_product_attention


class Block(nn.Module):
    """One kind of work, done ``count`` times in a call."""

    def __init__(self, work: Callable[[], Tensor], count: int) -> None:
        super().__init__()
        self.work, self.count = work, count

    def forward(self) -> None:
        """Do the work; the results are dropped."""
        for _ in range(self.count):
            self.work()


class Mixture(nn.Module):
    """Blocks one after another, after which the GPU rests for a multiple of the time they took."""

    def __init__(self, blocks: dict[str, Block], rest_frac: float) -> None:
        super().__init__()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.register_buffer(
            "rests", torch.tensor(rest_frac, device=device)
        )  # calls of a model without any tensor are no steps
        for name, block in blocks.items():
            self.add_module(name, block)
        self.rest_frac = rest_frac

    def forward(self) -> float:
        """Run the blocks, rest, and return the seconds of the rest."""
        begun_s = time.perf_counter()
        for block in self.children():
            block()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        took_s = time.perf_counter() - begun_s
        if self.rest_frac:
            time.sleep(took_s * self.rest_frac)
        return time.perf_counter() - begun_s - took_s


def unlike_works(device: str, small: bool) -> dict[str, Callable[[], Tensor]]:
    """Return name -> one call of each kind of work, of 0.1 to 2 ms on an H100; tensors are made once."""
    half = torch.float32 if device == "cpu" else torch.bfloat16

    def normal(*shape: int, dtype: torch.dtype = half) -> Tensor:
        return torch.randn(*((max(size // 16, 1) for size in shape) if small else shape), device=device, dtype=dtype)

    left, right = normal(4096, 4096), normal(4096, 4096)
    left32, right32 = normal(2048, 2048, dtype=torch.float32), normal(2048, 2048, dtype=torch.float32)
    images, kernel = normal(64, 128, 56, 56), torch.randn(128, 8 if small else 128, 3, 3, device=device, dtype=half)
    images, kernel = (one.to(memory_format=torch.channels_last) for one in (images, kernel))
    stream = normal(1 << 27)
    queries = normal(16, 16, 2048, 64)
    return {
        "products_bf16": lambda: left @ right,
        "products_fp32": lambda: left32 @ right32,
        "convolutions": lambda: conv2d(images, kernel, padding=1),
        "streaming": lambda: relu(stream),
        "attention": lambda: scaled_dot_product_attention(queries, queries, queries, is_causal=True),
    }
