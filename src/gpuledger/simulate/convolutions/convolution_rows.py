"""A convolution as one row of integers, used by measurements, fits and estimates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

COLUMNS = (
    "dims", "transposed", "dtype", "batch", "channels", "size0", "size1", "size2", "weight0", "weight1",
    "kernel0", "kernel1", "kernel2", "stride0", "stride1", "stride2", "padding0", "padding1", "padding2",
    "dilation0", "dilation1", "dilation2", "more0", "more1", "more2", "groups",
    "data_format", "weight_format", "bias", "gradient_format", "data_gradient",
)  # fmt: skip
"""Sizes of data and weight in torch's order, then torch's arguments in their order. Unused places of a triple are 0."""
PLACE = {name: index for index, name in enumerate(COLUMNS)}
DTYPES = ("float32", "float16", "bfloat16")
FIRST, LAST, OTHER = 0, 1, 2
"""Memory formats: channels first, channels last, or neither (torch then copies the tensor)."""
Row = tuple[int, ...]


def _is_last(shape: Any, strides: Any) -> bool:
    """Return whether strides are channels last, by torch's rule for ambiguous sizes of 1.

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
    """Return a tensor's memory format. If it has both, its strides decide, as in torch."""
    shape, strides = tensor.shape, tensor.stride()
    inner = range(tensor.dim() - 1, 1, -1)
    if tensor.dim() > 3 and _is_last(shape, strides):
        return LAST if _is_dense(shape, strides, (1, *inner, 0)) else OTHER
    return FIRST if _is_dense(shape, strides, (*inner, 1, 0)) else OTHER


def _is_dense(shape: Any, strides: Any, axes: Iterable[int]) -> bool:
    """Return whether elements are contiguous, the first of ``axes`` fastest. A size of 1 can have any stride."""
    due = 1
    for axis in axes:
        if shape[axis] != 1 and strides[axis] != due and math.prod(shape):
            return False
        due *= shape[axis]
    return True


def dtype_name(tensor: Any) -> str:
    """Return a tensor's dtype as in :data:`DTYPES`."""
    return str(tensor.dtype).removeprefix("torch.")


def _triple(values: Any) -> tuple[int, ...]:
    return (*(int(value) for value in values), *[0] * (3 - len(values)))


def _shape(tensor: Any) -> tuple[int, ...]:
    return (int(tensor.shape[0]), int(tensor.shape[1]), *_triple(tensor.shape[2:]))


def forward_row(args: Any) -> Row | None:
    """Return the row of ``aten.convolution``'s arguments, without bias; None for a dtype that was not measured."""
    data, weight, bias, stride, padding, dilation, transposed, more, groups = args[:9]
    if dtype_name(data) not in DTYPES or not 3 <= data.dim() <= 5:
        return None
    dims = data.dim() - 2
    lists = (_triple((list(values) * dims)[:dims]) for values in (stride, padding, dilation, more))
    listed = (number for one in lists for number in one)
    return (
        dims, int(transposed), DTYPES.index(dtype_name(data)), *_shape(data), *_shape(weight), *listed,
        int(groups), format_of(data), format_of(weight), int(bias is not None),
    )  # fmt: skip


def backward_row(args: Any) -> Row | None:
    """Return the complete row of ``aten.convolution_backward``'s arguments."""
    gradient, mask = args[0], args[10]
    before = forward_row((args[1], args[2], args[3] if mask[2] else None, *args[4:10]))
    return None if before is None else (*before, format_of(gradient), int(mask[0]))
