"""The definition: an output is the sum over input channels and taps of filter value × shifted input.

Nothing is transformed and no matrices are multiplied; beside the padded input no memory is needed. The price is one
pass over the whole output for each channel and tap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from . import Product


def transform_weight(weight: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return views [in · 9, out, 1, 1] of the filters: what one channel and tap gives to each output channel."""
    return weight.flatten(1).t()[:, :, None, None]


def convolve(images: torch.Tensor, transformed: torch.Tensor, product: Product) -> torch.Tensor:
    """Return the sum, accumulated in place in the output."""
    count, _, height, width = images.shape
    padded = functional.pad(images, (1, 1, 1, 1))
    output = images.new_zeros(count, transformed.shape[1], height, width)
    shifted = padded.unfold(2, 3, 1).unfold(3, 3, 1).permute(1, 4, 5, 0, 2, 3).unsqueeze(4)
    with product():
        filters = iter(transformed.unbind())
        for channel in shifted.unbind():
            for row in channel.unbind():
                for tap in row.unbind():
                    output.addcmul_(tap, next(filters))
    return output
