"""Values that are assumed where a size or a condition depends on them: the results of operators on unknown values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.values import Values

aten = torch.ops.aten

_LARGEST_ORDER = 1 << 23


def _assume_topk(values: Values, args: Any, result: Any) -> None:
    data, count = args[0], int(args[1])
    dim = args[2] if len(args) > 2 else -1
    if data.dim() and data.numel() <= _LARGEST_ORDER and data.shape[dim] >= count:
        values.assume(result[1], values.order(data.shape, dim, count))


def _assume_sort(values: Values, args: Any, result: Any) -> None:
    data = args[0]
    dim = next((value for value in args[1:] if isinstance(value, int) and not isinstance(value, bool)), -1)
    if data.dim() and data.numel() <= _LARGEST_ORDER and data.numel():
        values.assume(result[1], values.order(data.shape, dim, data.shape[dim]))


def _assume_best(values: Values, args: Any, result: Any) -> None:
    """Assume an index for ``argmax`` and similar operators."""
    dim = args[1] if len(args) > 1 else None
    options = args[0].numel() if dim is None else args[0].shape[dim] if args[0].dim() else 1
    index = result if isinstance(result, torch.Tensor) else result[1]
    values.assume(index, values.choice(index.shape, options))


def _assume_draw(values: Values, args: Any, result: Any) -> None:
    values.assume(result, values.choice(result.shape, args[0].shape[-1], related=False))


_UNIFORM = "_gpuledger_uniform"
"""Attribute of a tensor with random numbers between 0 and 1."""


def note_uniform(tensor: Any) -> None:
    """Remember that a tensor has random numbers between 0 and 1, also if it is too large for values."""
    setattr(tensor, _UNIFORM, True)


def _assume_share(is_below: bool) -> Callable[[Values, Any, Any], None]:
    """Return a function that assumes a comparison's result: half of it, or as much as of uniform random numbers."""

    def assume(values: Values, args: Any, result: Any) -> None:
        if result.numel() < 2:
            return
        data, bound = args[:2]
        known = isinstance(bound, (int, float)) and getattr(data, _UNIFORM, False)
        share = min(max(float(bound if is_below else 1 - bound), 0.0), 1.0) if known else None
        values.assume(result, values.half(result, share))

    return assume


def _finite(comparison: str) -> Callable[[Values, Any, Any], None]:
    """Return a function that knows the results of tests for NaN and infinity: the values of a training are finite."""

    def know(values: Values, args: Any, result: Any) -> None:
        data: torch.Tensor = args[0]
        other = args[1] if len(args) > 1 else None
        with_itself = other is data and bool(data.is_floating_point())
        if with_itself or len(args) == 1 or (isinstance(other, float) and not math.isfinite(other)):
            truth = len(args) > 1 and (comparison == "eq") is with_itself
            values.keep(result, torch.full((), truth), False)

    return know


_COMPARISONS = {
    getattr(getattr(aten, name), kind): _assume_share(name in ("lt", "le"))
    for name in ("lt", "le", "gt", "ge")
    for kind in ("Scalar", "Tensor")
}
ASSUMED: dict[Any, Callable[[Values, Any, Any], None]] = {
    aten.topk.default: _assume_topk,
    aten.sort.default: _assume_sort,
    aten.sort.stable: _assume_sort,
    aten.argmax.default: _assume_best,
    aten.argmin.default: _assume_best,
    aten.max.dim: _assume_best,
    aten.min.dim: _assume_best,
    aten.multinomial.default: _assume_draw,
    aten.isnan.default: _finite("isnan"),
    aten.isinf.default: _finite("isinf"),
    **{getattr(getattr(aten, name), kind): _finite(name) for name in ("eq", "ne") for kind in ("Scalar", "Tensor")},
    **_COMPARISONS,
}
"""Operator -> function that assumes values of its result if those of its arguments are not known."""
