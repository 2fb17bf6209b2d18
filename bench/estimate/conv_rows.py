"""Makes the tensors of a convolution from one row of integers (gpuledger.simulate.convolutions), and its sizes."""

from __future__ import annotations

import math
from typing import Any

import torch

from gpuledger.simulate.convolutions.convolution_rows import COLUMNS, DTYPES, LAST, OTHER, PLACE, Row, backward_row

MOST_BYTES, LEAST_BYTES = 2 << 30, 1 << 18
MOST_OPERATIONS, MOST_GROUPED_OPERATIONS = 2e12, 5e10
aten = torch.ops.aten


def arguments_of(row: Any, device: str) -> tuple[list[Any], tuple[Any, ...]]:
    """Return the tensors data, weight and bias of a row, and the other arguments of ``aten.convolution``."""
    got = dict(zip(COLUMNS, map(int, row), strict=True))
    dims, dtype = got["dims"], getattr(torch, DTYPES[got["dtype"]])
    lists = [[got[f"{name}{axis}"] for axis in range(dims)] for name in ("stride", "padding", "dilation", "more")]
    shape = [got["batch"], got["channels"], *(got[f"size{i}"] for i in range(dims))]
    data = _empty(shape, dtype, got["data_format"], device)
    kernel = [got["weight0"], got["weight1"], *(got[f"kernel{i}"] for i in range(dims))]
    weight = _empty(kernel, dtype, got["weight_format"], device)
    made = got["weight1"] * got["groups"] if got["transposed"] else got["weight0"]
    bias = torch.empty(made, dtype=dtype, device=device) if got["bias"] else None
    return [data, weight, bias], (lists[0], lists[1], lists[2], bool(got["transposed"]), lists[3], got["groups"])


def gradient_like(result: torch.Tensor, row: Any) -> torch.Tensor:
    """Return a gradient of a result in the row's format."""
    return _empty(list(result.shape), result.dtype, int(row[PLACE["gradient_format"]]), str(result.device))


def _empty(shape: list[int], dtype: torch.dtype, layout: int, device: str) -> torch.Tensor:
    if layout == LAST and len(shape) in (4, 5):
        wide = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        return torch.empty(shape, dtype=dtype, device=device, memory_format=wide)
    if layout == OTHER:
        return torch.empty([shape[0], 2 * shape[1], *shape[2:]], dtype=dtype, device=device)[:, : shape[1]]
    return torch.empty(shape, dtype=dtype, device=device)


def sizes_of(row: Row) -> tuple[float, float]:
    """Return the bytes of a case's tensors, gradients included, and how many multiplications its forward takes."""
    got = dict(zip(COLUMNS, row, strict=True))
    sides = []
    for axis in range(got["dims"]):
        reach = got[f"dilation{axis}"] * (got[f"kernel{axis}"] - 1) + 1
        size, step, edge = got[f"size{axis}"], got[f"stride{axis}"], got[f"padding{axis}"]
        side = (size - 1) * step - 2 * edge + reach + got[f"more{axis}"]
        sides.append(side if got["transposed"] else (size + 2 * edge - reach) // step + 1)
    if min(sides) < 1:
        return 0.0, 0.0
    weight = math.prod(max(got[name], 1) for name in ("weight0", "weight1", "kernel0", "kernel1", "kernel2"))
    made_channels = got["weight1"] * got["groups"] if got["transposed"] else got["weight0"]
    data = got["batch"] * got["channels"] * math.prod(got[f"size{axis}"] for axis in range(got["dims"]))
    made = got["batch"] * made_channels * math.prod(sides)
    places = data / got["channels"] if got["transposed"] else made / made_channels
    return 2.0 * (4 if got["dtype"] == 0 else 2) * (data + made + weight), float(places * weight)


def canonical(row: Row) -> Row:
    """Return a row with the formats that torch sees, where a size of 1 makes two formats one."""
    tensors, rest = arguments_of(row, "meta")
    gradient = gradient_like(aten.convolution(*tensors, *rest), row)
    bias_sizes = None if tensors[2] is None else list(tensors[2].shape)
    mask = [bool(row[PLACE["data_gradient"]]), True, bias_sizes is not None]
    return backward_row((gradient, *tensors[:2], bias_sizes, *rest, mask)) or row


def is_fit(row: Row) -> bool:
    """Return whether a case is neither too large nor too slow, nor one of many too small to matter."""
    held_bytes, operations = sizes_of(row)
    grouped = row[PLACE["groups"]] > 1
    return LEAST_BYTES < held_bytes < MOST_BYTES and operations < (
        MOST_GROUPED_OPERATIONS if grouped else MOST_OPERATIONS
    )
