"""Create tensor descriptions without a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def contiguous(shape: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


def tensor(shape: Sequence[int], dtype: str, sparsity: float = 0.0) -> dict[str, Any]:
    """Return the description of a contiguous tensor, of which a share is zero."""
    described: dict[str, Any] = {"shape": list(shape), "dtype": dtype, "stride": contiguous(shape)}
    return {**described, "sparsity": sparsity} if sparsity else described


def turned(shape: Sequence[int], dtype: str, sparsity: float = 0.0) -> dict[str, Any]:
    """Return the description of a transposed matrix, such as a linear layer's weight."""
    return {**tensor(shape, dtype, sparsity), "stride": [1, shape[0]]}
