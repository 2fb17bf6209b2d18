"""Numbers that say how long an operator takes, and still mean the same outside the range they were learned in."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpuledger.operators.formulas import FAMILIES, Work, family_of, work_of
from gpuledger.operators.key import ITEM_BYTES, OperatorKey
from gpuledger.operators.roof import Roof, uses_cores

Floats = npt.NDArray[np.float64]

TILE_M, TILE_N = 128, 128
"""A tile of a large matrix product; what does not fill one is computed all the same."""
ALIGNED = 8
"""Tensor cores take rows of so many elements at once."""
_NOTHING = float("nan")
"""Where a feature does not apply; trees have a branch for it."""

NAMES = (
    "log_flops", "log_read_bytes", "log_written_bytes", "log_intensity", "log_roof_ns", "is_compute_bound",
    "log_m", "log_n", "log_k", "log_batch", "tile_fill", "log_waves", "wave_fill", "is_aligned",
    "log_kernel", "stride", "log_groups", "is_depthwise", "item_bytes", "has_cores", "tensors", "log_largest",
    "log_last", "strided_frac", "is_channels_last", "sparsity", "is_hot", "log_reduced",
    *(f"is_{family}" for family in FAMILIES),
)  # fmt: skip
"""The features in their order, which is part of a fitted model."""


def features_of(keys: Sequence[OperatorKey], hot: Sequence[bool], roof: Roof) -> Floats:
    """Return one row of :data:`NAMES` for each operator, float64[n, features]; NaN where one does not apply."""
    rows = [_row(key, work_of(key), is_hot, roof) for key, is_hot in zip(keys, hot, strict=True)]
    return np.asarray(rows, dtype=np.float64).reshape(len(rows), len(NAMES))


def _row(key: OperatorKey, work: Work, is_hot: bool, roof: Roof) -> list[float]:
    family = family_of(key)
    compute_ns, move_ns = work.flops / roof.peak(key), work.bytes / roof.byte_per_ns
    return [
        _log(work.flops),
        _log(work.read_bytes),
        _log(work.written_bytes),
        _log(work.flops) - _log(work.bytes),
        math.log2(roof.time_ns(key, work)),
        float(compute_ns > move_ns),
        *_gemm(work, roof),
        *_window(work),
        *_layout(key),
        _sparsity(key),
        float(is_hot),
        _log(_reduced(key)),
        *(float(family == name) for name in FAMILIES),
    ]


def _log(value: float) -> float:
    return math.log2(value + 1)


def _gemm(work: Work, roof: Roof) -> list[float]:
    """Return the product's sizes, the share of its tiles that is filled, and of its last wave over the card."""
    gemm = work.gemm
    if gemm is None:
        return [_NOTHING] * 8
    tiles_m, tiles_n = math.ceil(gemm.m / TILE_M), math.ceil(gemm.n / TILE_N)
    filled = gemm.m * gemm.n / max(tiles_m * TILE_M * tiles_n * TILE_N, 1)
    waves = gemm.batch * tiles_m * tiles_n / max(roof.multiprocessors, 1)
    wave_fill = waves / max(math.ceil(waves), 1)
    aligned = float(gemm.k % ALIGNED == 0 and gemm.n % ALIGNED == 0)
    return [_log(gemm.m), _log(gemm.n), _log(gemm.k), _log(gemm.batch), filled, _log(waves), wave_fill, aligned]


def _window(work: Work) -> list[float]:
    if "convolution" not in work.family:
        return [_NOTHING] * 4
    is_depthwise = work.groups > 1 and work.gemm is not None and work.gemm.n == 1
    return [_log(work.kernel), float(work.stride), _log(work.groups), float(is_depthwise)]


def _layout(key: OperatorKey) -> list[float]:
    tensors = list(key.tensors())
    if not tensors:
        return [0.0, float(uses_cores(key)), 0.0, 0.0, 0.0, 0.0, 0.0]
    largest = max(tensors, key=lambda tensor: math.prod(tensor["shape"]))
    strided = sum(not _is_dense(tensor) for tensor in tensors) / len(tensors)
    return [
        float(ITEM_BYTES[largest["dtype"]]),
        float(uses_cores(key)),
        float(len(tensors)),
        _log(math.prod(largest["shape"])),
        _log(largest["shape"][-1] if largest["shape"] else 1),
        strided,
        float(_is_channels_last(largest)),
    ]


def _is_dense(tensor: dict[str, object]) -> bool:
    """Return whether a tensor's elements lie in the order of its shape."""
    shape, stride = tensor["shape"], tensor.get("stride")
    if stride is None:
        return True
    due = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):  # type: ignore[call-overload]  # JSON lists
        if size != 1 and step != due:
            return False
        due *= size
    return True


def _is_channels_last(tensor: dict[str, object]) -> bool:
    shape, stride = tensor["shape"], tensor.get("stride")
    return isinstance(stride, (list, tuple)) and len(stride) == 4 and stride[1] == 1 and shape[1] > 1  # type: ignore[index]


def _sparsity(key: OperatorKey) -> float:
    return max((float(tensor.get("sparsity", 0.0)) for tensor in key.tensors()), default=0.0)


def _reduced(key: OperatorKey) -> int:
    """Return the elements that a normalization, softmax or reduction joins into one; 0 where that is not known."""
    if family_of(key) not in ("normalization", "softmax", "reduction"):
        return 0
    first = next(key.tensors(), None)
    if first is None or not first["shape"]:
        return 0
    sizes = [one for one in key.arguments if isinstance(one, (list, tuple)) and one and isinstance(one[0], int)]
    shape = first["shape"]
    if "layer_norm" in key.name and sizes:
        return int(math.prod(sizes[0]))
    if "batch_norm" in key.name and len(shape) > 1:
        return int(math.prod(shape) // max(shape[1], 1))
    if sizes and all(-len(shape) <= axis < len(shape) for axis in sizes[0]):
        return int(math.prod(shape[axis] for axis in sizes[0]))
    return int(shape[-1])


def shape_family(key: OperatorKey) -> str:
    """Return what operators share that must not be on both sides of a split.

    That is the operator with its weight where it has one, else with the shape of its largest tensor less the batch:
    the same layer at another batch is no unseen operator.
    """
    work = work_of(key)
    if work.gemm is not None and work.family != "attention":
        return f"{key.operator} n{work.gemm.n} k{work.gemm.k} g{work.groups}"
    tensors = sorted(key.tensors(), key=lambda tensor: -math.prod(tensor["shape"]))
    inner = tensors[0]["shape"][1:] if tensors else ()
    return f"{key.operator} {list(inner)}"
