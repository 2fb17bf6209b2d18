"""Makes the tensors of a convolution from one row of integers (gpuledger.simulate.convolutions)."""

from __future__ import annotations

from typing import Any

import torch

from gpuledger.simulate.convolutions.convolution_rows import COLUMNS, DTYPES, LAST, OTHER, PLACE


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
