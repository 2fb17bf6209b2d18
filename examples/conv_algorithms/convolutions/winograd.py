"""Winograd's F(2×2, 3×3): four outputs of a 4×4 tile by 16 products instead of 36.

Tiles and filters are transformed by additions, multiplied element by element (over channels that is one matrix
product for each of the 16 elements) and transformed back. Transformed input and output are four times their size.

Source: A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural Networks (2015), section 4.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from . import Product

OUTPUT_TILE, INPUT_TILE = 2, 4
FROM_INPUT = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))
FROM_FILTER = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))
TO_OUTPUT = ((1, 1, 1, 0), (0, 1, -1, -1))


def transform_weight(weight: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return the transformed filters, float32[16, out, in]."""
    flat = weight.permute(2, 3, 0, 1).flatten(2).flatten(0, 1)
    return torch.mm(_both_ways(FROM_FILTER, weight), flat).view(-1, *weight.shape[:2])


def convolve(images: torch.Tensor, transformed: torch.Tensor, product: Product) -> torch.Tensor:
    """Return the tiles put together; one row and column too many are cut where height or width is odd."""
    count, channels, height, width = images.shape
    rows, columns = -(-height // OUTPUT_TILE), -(-width // OUTPUT_TILE)
    padded = functional.pad(images, (1, 1 + width % OUTPUT_TILE, 1, 1 + height % OUTPUT_TILE))
    tiles = padded.unfold(2, INPUT_TILE, OUTPUT_TILE).unfold(3, INPUT_TILE, OUTPUT_TILE)
    flat = tiles.permute(4, 5, 1, 0, 2, 3).reshape(INPUT_TILE**2, -1)
    del padded, tiles
    elements = torch.mm(_both_ways(FROM_INPUT, images), flat).view(INPUT_TILE**2, channels, -1)
    del flat
    with product():
        elements = torch.bmm(transformed, elements)
    pixels = torch.mm(_both_ways(TO_OUTPUT, images), elements.flatten(1))
    del elements
    pixels = pixels.view(OUTPUT_TILE, OUTPUT_TILE, -1, count, rows, columns).permute(3, 2, 4, 0, 5, 1)
    output = pixels.reshape(count, -1, rows * OUTPUT_TILE, columns * OUTPUT_TILE)
    return output[:, :, :height, :width].contiguous()


def _both_ways(matrix: tuple[tuple[float, ...], ...], like: torch.Tensor) -> torch.Tensor:
    """Return one matrix that transforms a flattened tile along its rows and its columns."""
    one_way = like.new_tensor(matrix)
    return torch.kron(one_way, one_way)
