"""What cuDNN's convolutions hold while they run: copies in its own order of channels, and partial sums.

Source: every convolution of ResNet-50, VGG-16, DenseNet-121, ConvNeXt, ViT, a U-Net and a DCGAN in float32 and halves
on an H200 with cuDNN 9.19, November 2026. Where the program keeps channels first, cuDNN turns what it reads and writes
into channels last, a few channels filled up to 16 bytes; a pointwise convolution over a number of pixels that four
divides is done in place. Which algorithm cuDNN's heuristics take for a shape is not known: the rules were within one
percent or 64 KiB for half of the shapes, and the parts of a sum are the commonest miss.
"""

from __future__ import annotations

import math
from typing import Any

import torch

_POINTWISE_BYTES = 400
_EXTRA_BYTES = 16
_PIXEL_BYTES = 16
"""Few channels are filled up, so that a pixel's have this size."""
_NARROW = 64
"""From so many channels of floats to at most twice as many, the result is written in the program's order at once."""
_TILE, _LEAST_SUMMED, _MOST_PARTIAL_BYTES = 128, 2048, 64 << 20
"""A weight's gradient is made in square tiles; where these are fewer than the card's processors, its sum is split."""
_FLOAT_BYTES, _DEPTHWISE_PARTS = 4, 8


def _bytes(*tensors: Any) -> int:
    return sum(int(tensor.numel() * tensor.element_size()) for tensor in tensors)


def _filled_bytes(tensor: Any) -> int:
    """Return the size of images or weights whose channels are filled up."""
    channels = int(tensor.shape[1])
    least = _PIXEL_BYTES // int(tensor.element_size())
    return _bytes(tensor) * least // channels if channels < least else _bytes(tensor)


def _is_turned(data: Any) -> bool:
    """Return whether the program itself keeps channels last."""
    return bool(data.is_contiguous(memory_format=torch.channels_last)) and data.shape[1] > 1


def _is_pointwise(data: Any, weight: Any, stride: Any) -> bool:
    """Return whether a convolution is a plain matrix product over pixels."""
    return bool(_is_single(weight, stride)) and math.prod(data.shape[2:]) % 4 == 0


def _is_single(weight: Any, stride: Any) -> bool:
    return math.prod(weight.shape[2:]) == 1 and all(step == 1 for step in stride)


def _turned_weight_bytes(data: Any, weight: Any) -> int:
    """Return the copy of a weight for images with channels last; torch makes it."""
    return 0 if _is_turned(weight) or math.prod(weight.shape[2:]) == 1 else _bytes(weight)


def _reads_few_channels(image: Any, weight: Any, stride: Any) -> bool:
    """Return whether images of few channels are read as they are: step by step, or by small kernels on floats."""
    if weight.shape[1] * image.element_size() >= _PIXEL_BYTES:
        return False
    small = all(size <= 2 * step for size, step in zip(weight.shape[2:], stride, strict=True))
    return all(step == 1 for step in stride) or (small and image.element_size() == _FLOAT_BYTES)


def forward_bytes(args: Any) -> int:
    """Return what ``aten.convolution`` holds beside its result; an upper bound where cuDNN leaves the output out."""
    data, weight, stride, groups = args[0], args[1], args[3], args[8]
    if data.dim() != 4 or groups > 1:
        return 0
    if _is_turned(data):
        return _turned_weight_bytes(data, weight)
    if _is_pointwise(data, weight, stride):
        return _POINTWISE_BYTES
    half = data.element_size() == 2
    if _reads_few_channels(data, weight, stride):
        return 0
    turned_bytes = (_filled_bytes(data) if half else _bytes(data)) + _EXTRA_BYTES
    if math.prod(weight.shape[2:]) > 1:
        turned_bytes += _filled_bytes(weight) if half else _bytes(weight)
    if not half and data.shape[1] <= _NARROW and weight.shape[0] <= 2 * _NARROW:
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


def _partial_bytes(gradient: Any, data: Any, weight: Any, multiprocessors: int) -> int:
    """Return the floats in which a weight's gradient is summed where its sum is split among processors."""
    rows, columns = weight.shape[0], math.prod(weight.shape[1:])
    tile = min(_TILE, rows)
    tiles = -(-rows // tile) * -(-columns // tile)
    if tiles > multiprocessors:
        return multiprocessors * tile * tile * _FLOAT_BYTES if weight.element_size() == _FLOAT_BYTES else 0
    summed = gradient.shape[0] * min(math.prod(gradient.shape[2:]), math.prod(data.shape[2:]))
    parts = int(min(multiprocessors // tiles, summed // _LEAST_SUMMED))
    return parts * int(weight.numel()) * _FLOAT_BYTES if parts > 1 else 0


def backward_bytes(args: Any, multiprocessors: int) -> tuple[int, int]:
    """Return what ``aten.convolution_backward`` holds for the data's gradient, and then for the weight's."""
    gradient, data, weight, stride, groups = args[0], args[1], args[2], args[4], args[9]
    if data.dim() != 4:
        return 0, 0
    if groups == data.shape[1] and groups > 1:
        return 0, int(data.shape[0] * _DEPTHWISE_PARTS * weight.numel()) * _FLOAT_BYTES
    if groups > 1:
        return 0, 0
    if _is_turned(data):
        return _turned_weight_bytes(data, weight), 0
    per_image_bytes = int(data.shape[0] * weight.numel()) * _FLOAT_BYTES
    if _is_pointwise(data, weight, stride):
        fits = per_image_bytes <= _MOST_PARTIAL_BYTES
        return _POINTWISE_BYTES, per_image_bytes if fits else _bytes(gradient, data)
    if data.element_size() == _FLOAT_BYTES and _reads_few_channels(data, weight, stride):
        return 0, 0
    turned_bytes = _bytes(gradient) + _filled_bytes(data) + _EXTRA_BYTES
    if _is_single(weight, stride):
        return turned_bytes, max(turned_bytes, per_image_bytes if per_image_bytes <= _MOST_PARTIAL_BYTES else 0)
    if math.prod(weight.shape[2:]) > 1:
        turned_bytes += _filled_bytes(weight)
    return turned_bytes, turned_bytes + _partial_bytes(gradient, data, weight, multiprocessors)
