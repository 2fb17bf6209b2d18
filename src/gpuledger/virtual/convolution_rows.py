"""A convolution as one row of whole numbers, for measurements, what is made of them, and estimates."""

from __future__ import annotations

from typing import Any

import torch

COLUMNS = (
    "dims", "transposed", "dtype", "batch", "channels", "size0", "size1", "size2", "weight0", "weight1",
    "kernel0", "kernel1", "kernel2", "stride0", "stride1", "stride2", "padding0", "padding1", "padding2",
    "dilation0", "dilation1", "dilation2", "more0", "more1", "more2", "groups",
    "data_format", "weight_format", "bias", "gradient_format", "data_gradient",
)  # fmt: skip
"""Sizes of data and weight as torch has them, what follows in torch's order; unused places of a triple are 0."""
PLACE = {name: index for index, name in enumerate(COLUMNS)}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FIRST, LAST, OTHER = 0, 1, 2
"""Formats of a tensor: channels first, channels last, or neither, which torch copies."""
Row = tuple[int, ...]


def _is_last(shape: Any, strides: Any) -> bool:
    """Return whether strides are those of channels last, as torch tells it where a size of 1 leaves it open.

    Source: c10/core/MemoryFormat.h, is_channels_last_strides_2d.
    """
    least = 0
    if strides[1] == 0:
        return False
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(shape[axis], 1)
    return True


def format_of(tensor: Any) -> int:
    """Return a tensor's format; where it is both, its strides say which, as they do to torch."""
    wide = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if wide is not None and _is_last(tensor.shape, tensor.stride()):
        return LAST if tensor.is_contiguous(memory_format=wide) else OTHER
    return FIRST if tensor.is_contiguous() else OTHER


def _triple(values: Any) -> tuple[int, ...]:
    return (*(int(value) for value in values), *[0] * (3 - len(values)))


def _shape(tensor: Any) -> tuple[int, ...]:
    return (int(tensor.shape[0]), int(tensor.shape[1]), *_triple(tensor.shape[2:]))


def forward_row(args: Any) -> Row | None:
    """Return the row of ``aten.convolution``'s arguments up to its bias; None for a type that was not measured."""
    data, weight, bias, stride, padding, dilation, transposed, more, groups = args[:9]
    if data.dtype not in DTYPES or not 3 <= data.dim() <= 5:
        return None
    dims = data.dim() - 2
    lists = (_triple((list(values) * dims)[:dims]) for values in (stride, padding, dilation, more))
    listed = (number for one in lists for number in one)
    return (
        dims, int(transposed), DTYPES.index(data.dtype), *_shape(data), *_shape(weight), *listed,
        int(groups), format_of(data), format_of(weight), int(bias is not None),
    )  # fmt: skip


def backward_row(args: Any) -> Row | None:
    """Return the whole row, of ``aten.convolution_backward``'s arguments."""
    gradient, mask = args[0], args[10]
    before = forward_row((args[1], args[2], args[3] if mask[2] else None, *args[4:10]))
    return None if before is None else (*before, format_of(gradient), int(mask[0]))
