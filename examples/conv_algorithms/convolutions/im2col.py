"""Every output's 3×3 neighbourhood is copied into a column; then the convolution is one matrix product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from . import Product


def transform_weight(weight: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return the filters as the rows of a matrix [out, in · 9], without a copy."""
    return weight.flatten(1)


def convolve(images: torch.Tensor, transformed: torch.Tensor, product: Product) -> torch.Tensor:
    """Return filters × columns; the columns are nine times the input."""
    columns = functional.unfold(images, kernel_size=3, padding=1)
    with product():
        output = torch.matmul(transformed, columns)
    return output.view(len(images), -1, *images.shape[2:])
