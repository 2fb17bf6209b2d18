"""A model of two known halves: one of matrix products, one of copies. The other half can be left out.

Each half waits between its kernels, so that neither reaches 500 W: above the power cap a half would be slowed by the
other's heat, and its joules alone would not be its joules in the model.

Usage: python bench/lib/halves.py both|products|copies --seconds 12
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn

IDLE_AFTER_PRODUCTS, IDLE_AFTER_COPIES = 1.3, 0.6
"""Of the time a half took. Products take above 900 W for some milliseconds; with this rest they stay below 500 W."""


class Products(nn.Module):
    """Matrix products, one after another; on a GPU of 700 W half of its multiprocessors' work is left undone."""

    def __init__(self, size: int, count: int, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size, device=device, dtype=dtype) / size**0.5)
        self.count = count

    def forward(self, data: Tensor) -> Tensor:
        """Return the last product."""
        found = data
        for _ in range(self.count):
            found = found @ self.weight
        return found


class Copies(nn.Module):
    """Copies of a buffer larger than the GPU's cache."""

    def __init__(self, elements: int, count: int, device: str) -> None:
        super().__init__()
        self.source = nn.Parameter(torch.randn(elements, device=device))
        self.register_buffer("target", torch.empty(elements, device=device))
        self.count = count

    def forward(self, data: Tensor) -> Tensor:
        """Return what was given, after the copies."""
        for _ in range(self.count):
            self.target.copy_(self.source)
        return data


class Halves(nn.Module):
    """The halves that are asked for, the GPU left idle after each for a share of the time it took."""

    def __init__(self, which: str, small: bool, device: str) -> None:
        super().__init__()
        size, elements, count = (64, 1 << 12, 2) if small else (2048, 1 << 28, 40)
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self.products = Products(size, count * 8, device, dtype) if which in ("both", "products") else None
        self.copies = Copies(elements, count, device) if which in ("both", "copies") else None
        self.data = torch.randn(size, size, device=device, dtype=dtype)

    def forward(self, _: Tensor) -> Tensor:
        """Return the data, after each half has run and the GPU has rested."""
        for half, idle_frac in ((self.products, IDLE_AFTER_PRODUCTS), (self.copies, IDLE_AFTER_COPIES)):
            if half is not None:
                started_s = time.perf_counter()
                half(self.data)
                if self.data.is_cuda:
                    torch.cuda.synchronize()
                time.sleep((time.perf_counter() - started_s) * idle_frac)
        return self.data


def main() -> None:
    """Call the halves for a while."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["both", "products", "copies"])
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = Halves(arguments.which, arguments.small, arguments.device).eval()
    begun_s, calls, data = time.perf_counter(), 0, torch.ones(1)
    with torch.no_grad():
        while calls < arguments.calls or time.perf_counter() - begun_s < arguments.seconds:
            model(data)
            calls += 1


if __name__ == "__main__":
    main()
