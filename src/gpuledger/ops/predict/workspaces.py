"""Workspaces of convolutions as features: they indicate the algorithm that cuDNN chooses.

Source: :mod:`gpuledger.simulate.convolutions`: 80,075 convolutions measured on an H200, and for other shapes trees
fitted to these. Times were not measured there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuledger.analyze.operator_work.formulas import CallWork
from gpuledger.operator_key import OperatorKey, is_tensor
from gpuledger.ops.workloads.describe_json import contiguous
from gpuledger.simulate.convolutions.convolution_guess import workspaces_of
from gpuledger.simulate.convolutions.convolution_rows import Row, backward_row, forward_row
from gpuledger.simulate.convolutions.convolution_terms import DATA_GRADIENT, FORWARD, WEIGHT_GRADIENT, key_of

NAMES = ("workspace", "has_workspace", "weight_workspace", "has_weight_workspace", "with_workspace")
"""Workspaces of result or input gradient, of the weight gradient, and of both with the bytes read and written. As log2
of their share of the bytes read and written."""
LEAST_SHARE = 1e-3
Values = dict[str, float]
Held = tuple[int, ...]
"""Workspace bytes of each operation; empty if it is not a cuDNN convolution."""


@dataclass(frozen=True)
class _Tensor:
    """A tensor of a key, with the attributes of a real one that a convolution's row needs."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def dim(self) -> int:
        return len(self.shape)

    def stride(self) -> tuple[int, ...]:
        return self.strides


def held_by(keys: Sequence[OperatorKey]) -> list[Held]:
    """Return the workspaces of each operator."""
    rows = {place: key_of(row) for place, key in enumerate(keys) if (row := _row(key)) is not None}
    held: dict[int, list[int]] = {place: [] for place in rows}
    for name, operation in _OPERATIONS:
        some = [place for place in rows if keys[place].name == name]
        for place, found in zip(some, workspaces_of([rows[place] for place in some], operation), strict=True):
            held[place].append(found.size_bytes)
    return [tuple(held.get(place, ())) for place in range(len(keys))]


_OPERATIONS = (
    ("convolution", FORWARD),
    ("convolution_backward", DATA_GRADIENT),
    ("convolution_backward", WEIGHT_GRADIENT),
)


def workspace_features(held: Held, work: CallWork) -> Values:
    """Return the features :data:`NAMES` of an operator; empty if its workspaces are unknown."""
    if not held:
        return {}
    moved = max(work.bytes, 1)
    values = {"with_workspace": math.log2(1 + sum(held) / moved)}
    for name, size_bytes in zip(("workspace", "weight_workspace"), held, strict=False):
        values |= {name: math.log2(size_bytes / moved + LEAST_SHARE), f"has_{name}": float(size_bytes > 0)}
    return values


def _row(key: OperatorKey) -> Row | None:
    """Return the row of a convolution or of its gradients; None for another operator or form of call."""
    values = [_tensor(value) for value in key.arguments]
    try:
        if key.name == "convolution":
            return forward_row(values) if not values[6] else None
        return backward_row(values) if key.name == "convolution_backward" and not values[7] else None
    except (IndexError, TypeError, AttributeError):
        return None


def _tensor(value: Any) -> Any:
    if not is_tensor(value):
        return value
    described: Mapping[str, Any] = value
    shape = tuple(described["shape"])
    return _Tensor(described["dtype"], shape, tuple(described.get("stride") or contiguous(shape)))
