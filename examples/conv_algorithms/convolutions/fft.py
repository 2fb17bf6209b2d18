"""A convolution is a product of spectra: transform input and filters, multiply frequency by frequency, transform back.

Filters of 3×3 become spectra as large as the input, for each pair of channels. That is this algorithm's memory, and
it does not depend on the number of images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from . import Product

REACH = 2
"""Rows and columns that a 3×3 filter adds to the linear convolution; also where the wanted part begins."""


def choose_length(least: int) -> int:
    """Return the smallest even length from ``least`` on whose prime factors are 2, 3, 5 and 7, the fast ones."""
    length = least + least % 2
    while True:
        rest = length
        for factor in (2, 3, 5, 7):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return length
        length += 2


def transform_weight(weight: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return the spectra of the flipped filters, complex64[frequencies, in, out]."""
    lengths = choose_length(height + REACH), choose_length(width + REACH)
    return _by_frequency(torch.fft.rfft2(weight.flip(2, 3), s=lengths)).mT.contiguous()


def convolve(images: torch.Tensor, transformed: torch.Tensor, product: Product) -> torch.Tensor:
    """Return the part of the circular convolution that no wrap-around reaches."""
    count, _, height, width = images.shape
    high, wide = choose_length(height + REACH), choose_length(width + REACH)
    padded = functional.pad(images, (1, wide - width - 1, 1, high - height - 1))
    spectra = _by_frequency(torch.fft.rfft2(padded))
    del padded
    with product():
        spectra = torch.bmm(spectra, transformed)
    spectra = spectra.view(high, wide // 2 + 1, count, -1).permute(2, 3, 0, 1)
    whole: torch.Tensor = torch.fft.irfft2(spectra, s=(high, wide))
    return whole[:, :, REACH : REACH + height, REACH : REACH + width].contiguous()


def _by_frequency(spectra: torch.Tensor) -> torch.Tensor:
    """Return [rows · columns, a, b] for spectra [a, b, rows, columns]: one matrix a frequency."""
    return spectra.permute(2, 3, 0, 1).flatten(0, 1)
