"""What cuDNN's convolutions hold while they run: copies in its own order of channels, and partial sums.

Source: every convolution of ResNet-50 (32 images of 224 pixels) and of a DCGAN in float32 on an H200 with cuDNN 9.19,
November 2026. Where the program keeps channels first, cuDNN turns what it reads and writes into channels last; a
pointwise convolution over a number of pixels that four divides is done in place.
"""

from __future__ import annotations

import math
from typing import Any

import torch

_POINTWISE_BYTES = 400
_EXTRA_BYTES = 16
_FEW_CHANNELS, _NARROW = 4, 64
"""Between so many channels, in and out, the result is written in the program's order at once."""
_TILE, _LEAST_SUMMED, _MOST_PARTIAL_BYTES = 128, 512, 64 << 20
"""A weight's gradient is made in square tiles; where these are fewer than the card's processors, its sum is split."""


def _bytes(*tensors: Any) -> int:
    return sum(int(tensor.numel() * tensor.element_size()) for tensor in tensors)


def _is_done_in_place(data: Any, groups: int) -> bool:
    """Return whether nothing is copied: not of images, grouped by channels, or turned by the program already."""
    if data.dim() != 4 or groups > 1:
        return True
    return bool(data.is_contiguous(memory_format=torch.channels_last)) and data.shape[1] > 1


def _is_pointwise(data: Any, weight: Any, stride: Any) -> bool:
    """Return whether a convolution is a plain matrix product over pixels."""
    one = math.prod(weight.shape[2:]) == 1 and all(step == 1 for step in stride)
    return bool(one) and math.prod(data.shape[2:]) % 4 == 0


def forward_bytes(args: Any) -> int:
    """Return what ``aten.convolution`` holds beside its result; an upper bound where cuDNN leaves the output out."""
    data, weight, stride, groups = args[0], args[1], args[3], args[8]
    if _is_done_in_place(data, groups):
        return 0
    if _is_pointwise(data, weight, stride):
        return _POINTWISE_BYTES
    turned_bytes = _bytes(data) + _EXTRA_BYTES
    if math.prod(weight.shape[2:]) > 1:
        turned_bytes += _bytes(weight)
    if _FEW_CHANNELS < data.shape[1] <= _NARROW and weight.shape[0] <= _NARROW:
        return turned_bytes
    return turned_bytes + _numbers_made(args) * int(data.element_size())


def _numbers_made(args: Any) -> int:
    """Return how many numbers a convolution makes."""
    data, weight, stride, padding, dilation, transposed = args[0], args[1], args[3], args[4], args[5], args[6]
    sizes = []
    for axis, size in enumerate(data.shape[2:]):
        reach = dilation[axis] * (weight.shape[2 + axis] - 1)
        if transposed:
            sizes.append((size - 1) * stride[axis] - 2 * padding[axis] + reach + 1)
        else:
            sizes.append((size + 2 * padding[axis] - reach - 1) // stride[axis] + 1)
    channels = weight.shape[1] * args[8] if transposed else weight.shape[0]
    return int(data.shape[0] * channels * math.prod(sizes))


def _splits(gradient: Any, weight: Any, multiprocessors: int) -> int:
    """Return in how many parts a weight's gradient is summed; each but a single one has a buffer of its own."""
    rows, columns = weight.shape[0], math.prod(weight.shape[1:])
    tile = min(_TILE, rows)
    tiles = -(-rows // tile) * -(-columns // tile)
    summed = gradient.shape[0] * math.prod(gradient.shape[2:])
    parts = min(multiprocessors // tiles, summed // _LEAST_SUMMED)
    return int(parts) if parts > 1 else 0


def backward_bytes(args: Any, multiprocessors: int) -> tuple[int, int]:
    """Return what ``aten.convolution_backward`` holds for the data's gradient, and then for the weight's."""
    gradient, data, weight, stride, groups = args[0], args[1], args[2], args[4], args[9]
    if _is_done_in_place(data, groups):
        return 0, 0
    if _is_pointwise(data, weight, stride):
        partial_bytes = data.shape[0] * _bytes(weight)
        return _POINTWISE_BYTES, partial_bytes if partial_bytes <= _MOST_PARTIAL_BYTES else _bytes(gradient, data)
    turned_bytes = _bytes(gradient, data) + _EXTRA_BYTES
    if math.prod(weight.shape[2:]) > 1:
        turned_bytes += _bytes(weight)
    return turned_bytes, turned_bytes + _splits(gradient, weight, multiprocessors) * _bytes(weight)
