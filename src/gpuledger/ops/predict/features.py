"""Features of operators for predictions, chosen so that they extrapolate.

For quantities without an upper limit, there is also a feature that saturates, so that a very large operator is similar
to the largest measured one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuledger.analyze.operator_work.formulas import FAMILIES, CallWork, convolution_of, family_of, work_of
from gpuledger.analyze.operator_work.traffic import dense_bytes
from gpuledger.operator_key import ITEM_BYTES, OperatorKey, is_tensor
from gpuledger.ops.predict.roof import Roof, uses_cores
from gpuledger.ops.predict.workspaces import NAMES as _HELD
from gpuledger.ops.predict.workspaces import Held, held_by, workspace_features

Floats = npt.NDArray[np.float64]
Row = dict[str, float]

TILES = ((128, 128), (64, 64), (256, 128))
"""Tile sizes of matrix products. A partly filled tile takes as long as a full one."""
BLOCK_ELEMENTS, VECTOR = 1_024, 8
"""Elements per block of an elementwise kernel, and the largest vector of one load."""
SHORT_NS, LONG_NS = 1e4, 1e6
"""Durations above which work hides the launch, and all other start-up costs."""
_NOTHING = float("nan")
"""Value of a feature that does not apply."""

_WORK = (
    "intensity", "balance", "filled_compute", "filled_move", "filled_long_compute", "filled_long_move",
    "cache_fill", "spill", "largest_spill", "hot_in_cache", "is_hot", "launches", "launch_bytes", "read_by_written",
)  # fmt: skip
_GEMM = (
    "log_m", "log_n", "log_k", "even_m", "even_n", "even_k",
    *(f"{name}_{m}x{n}" for m, n in TILES for name in ("tile_fill", "wave_fill")), "filled_waves", "filled_small_waves",
)  # fmt: skip
_WINDOW = (
    "log_inner", "log_outer", "log_places", "log_pixels", "log_batch", "kernel_height", "kernel_width", "stride",
    "log_groups", "width_out", "width_in", "padding", "is_depthwise", "is_winograd", "has_bias", "has_input_gradient",
    "log_weights", "log_input", "log_output", "even_inner", "even_pixels", "log_columns",
)  # fmt: skip
_LAYOUT = (
    "tensors", "filled_blocks", "block_fill", "log_last", "log_run", "strided_frac", "is_channels_last",
    "even_elements", "item_bytes", "has_cores", "sparsity", "log_smallest",
)  # fmt: skip
_PLANES = (
    "log_channels", "log_plane", "log_images", "even_plane", "channel_fill", "channel_waves", "log_channel",
    "is_training", "pool_window", "log_reduced", "log_results",
)  # fmt: skip
NAMES = (*_WORK, *_GEMM, *_WINDOW, *_LAYOUT, *_PLANES, *_HELD, *(f"is_{family}" for family in FAMILIES))
"""The features in their order, which is part of a fitted model."""


@dataclass(frozen=True)
class Features:
    """Operators as numbers.

    Attributes:
        values: float64[n, :data:`NAMES`], NaN where one does not apply.
        kinds: Names of the operators; equal for operators with the same kernels.
        families: Indices in ``FAMILIES``, int64[n].
    """

    values: Floats
    kinds: npt.NDArray[np.str_]
    families: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Features:
        return Features(self.values[rows], self.kinds[rows], self.families[rows])


def features_of(
    keys: Sequence[OperatorKey],
    hot: Sequence[bool],
    roof: Roof,
    works: Sequence[CallWork] | None = None,
    held: Sequence[Held] | None = None,
) -> Features:
    """Return the features of each operator on a GPU.

    Args:
        keys: The operators.
        hot: Whether their inputs are in the cache.
        roof: The GPU's roofline.
        works: Work of the operators, if known already.
        held: Workspaces of the operators, if known already.
    """
    works, held = works or [work_of(key) for key in keys], held or held_by(keys)
    rows = [
        _row(key, work, is_hot, roof) | workspace_features(beside, work)
        for key, work, is_hot, beside in zip(keys, works, hot, held, strict=True)
    ]
    values = [[row.get(name, _NOTHING) for name in NAMES] for row in rows]
    return Features(
        np.asarray(values, dtype=np.float64).reshape(len(rows), len(NAMES)),
        np.array([_KINDS.get(key.name, key.name) for key in keys], dtype=np.str_),
        np.array([FAMILIES.index(work.family) for work in works], dtype=np.int64),
    )


_KINDS = {"addmm": "mm"}


def _row(key: OperatorKey, work: CallWork, is_hot: bool, roof: Roof) -> Row:
    tensors = [tensor for tensor in key.tensors() if "same" not in tensor]
    return {
        **_work(key, work, tensors, is_hot, roof),
        **_gemm(work, roof),
        **_window(key, work),
        **_layout(key, tensors, roof),
        **_planes(key, tensors, roof),
        **{f"is_{family}": float(work.family == family) for family in FAMILIES},
    }


def _log(value: float) -> float:
    return math.log2(value + 1)


def _filled(value: float, half: float) -> float:
    """Return log2(value / (value + half)), which approaches 0 for large values."""
    return math.log2(value / (value + half) + 1e-4)


def _even(value: int, most: int = 64) -> float:
    """Return log2 of the largest power of two, up to ``most``, that divides a size."""
    return float(min((value & -value).bit_length(), most.bit_length()))


def _share(value: float) -> float:
    """Return the used fraction of ``value`` waves or tiles, rounded up."""
    return value / math.ceil(value) if value else 1.0


def _doublings(part_bytes: float, cache_bytes: float) -> float:
    return min(max(math.log2(part_bytes / cache_bytes + 1e-9), -2.0), 2.0)


def _work(key: OperatorKey, work: CallWork, tensors: Sequence[Mapping[str, Any]], is_hot: bool, roof: Roof) -> Row:
    compute_ns, move_ns = work.flops / roof.peak(key), work.bytes / roof.byte_per_ns
    cache_bytes = float(roof.cache_bytes or 50 << 20)
    largest = max((dense_bytes(tensor) for tensor in tensors), default=0)
    return {
        "intensity": _log(work.flops) - _log(work.bytes),
        "balance": min(max(math.log2((compute_ns + 100) / (move_ns + 100)), -4.0), 4.0),
        "filled_compute": _filled(compute_ns, 3 * SHORT_NS),
        "filled_move": _filled(move_ns, SHORT_NS),
        "filled_long_compute": _filled(compute_ns, LONG_NS),
        "filled_long_move": _filled(move_ns, LONG_NS / 10),
        "cache_fill": math.log2(work.bytes / cache_bytes + 1e-3),
        "spill": _doublings(work.bytes, cache_bytes),
        "largest_spill": _doublings(largest, cache_bytes),
        "hot_in_cache": float(is_hot) * min(max(2 - work.bytes / cache_bytes, 0.0), 1.0),
        "is_hot": float(is_hot),
        "launches": _log(work.launches),
        "launch_bytes": _log(work.bytes / work.launches),
        "read_by_written": _log(work.read_bytes) - _log(work.written_bytes),
    }


def _gemm(work: CallWork, roof: Roof) -> Row:
    """Return the product's sizes, the used fraction of its tiles, and that of its waves."""
    gemm = work.gemm
    if gemm is None:
        return {}
    row = {
        **{f"log_{name}": _log(getattr(gemm, name)) for name in "mnk"},
        **{f"even_{name}": _even(getattr(gemm, name), 1 << 20) for name in "mnk"},
    }
    processors = max(roof.multiprocessors, 1)
    for (m, n), waves_name in zip(TILES, ("filled_waves", "filled_small_waves", ""), strict=True):
        tiles = max(gemm.batch * math.ceil(gemm.m / m) * math.ceil(gemm.n / n), 1)
        row[f"tile_fill_{m}x{n}"] = gemm.batch * gemm.m * gemm.n / (tiles * m * n)
        row[f"wave_fill_{m}x{n}"] = _share(tiles / processors)
        if waves_name:
            row[waves_name] = _filled(tiles / processors, 2.0)
    return row


def _window(key: OperatorKey, work: CallWork) -> Row:
    """Return a convolution's geometry, by which libraries choose the algorithm."""
    found = convolution_of(key)
    if found is None:
        return {}
    (batch, _, *pixels), (_, channels, *places) = found.x, found.out
    inner, kernel = found.w[1], found.w[2:]
    is_backward = work.family == "convolution_backward"
    mask = key.arguments[10] if is_backward else (_NOTHING, _NOTHING, is_tensor(key.arguments[2]))
    return {
        "log_inner": _log(inner),
        "log_outer": _log(channels / found.groups),
        "log_places": _log(math.prod(places)),
        "log_pixels": _log(math.prod(pixels)),
        "log_batch": _log(batch),
        "kernel_height": float(kernel[0]),
        "kernel_width": float(kernel[-1]),
        "stride": float(found.stride),
        "log_groups": _log(found.groups),
        "width_out": float(places[-1]),
        "width_in": float(pixels[-1]),
        "padding": float(found.padding),
        "is_depthwise": float(found.groups > 1 and inner == 1),
        "is_winograd": float(set(kernel) == {3} and found.stride == 1 and found.groups == 1),
        "has_bias": float(mask[2]),
        "has_input_gradient": float(mask[0]),
        "log_weights": _log(math.prod(found.w)),
        "log_input": _log(math.prod(found.x)),
        "log_output": _log(math.prod(found.out)),
        "even_inner": _even(inner),
        "even_pixels": _even(math.prod(pixels)),
        "log_columns": _log(batch * math.prod(places) * math.prod(found.w[1:]) * found.groups),
    }


def _layout(key: OperatorKey, tensors: Sequence[Mapping[str, Any]], roof: Roof) -> Row:
    """Return the memory layout of the elements, and the number of blocks."""
    cores, sparsity = float(uses_cores(key)), _sparsity(key)
    if not tensors:
        return {"has_cores": cores, "sparsity": sparsity, "tensors": 0.0}
    largest = max(tensors, key=lambda tensor: math.prod(tensor["shape"]))
    elements = math.prod(largest["shape"])
    blocks = elements / BLOCK_ELEMENTS / max(roof.multiprocessors, 1)
    runs = [_log(_run_elements(tensor)) for tensor in tensors if math.prod(tensor["shape"]) > BLOCK_ELEMENTS]
    return {
        "tensors": _log(len(tensors)),
        "filled_blocks": _filled(blocks, 4.0),
        "block_fill": _share(blocks / VECTOR),
        "log_last": _log(largest["shape"][-1] if largest["shape"] else 1),
        "log_run": min(runs, default=_log(elements)),
        "strided_frac": sum(not _is_dense(tensor) for tensor in tensors) / len(tensors),
        "is_channels_last": float(_is_channels_last(largest)),
        "even_elements": _even(elements, 1 << 30) if elements else 0.0,
        "item_bytes": float(ITEM_BYTES[largest["dtype"]]),
        "has_cores": cores,
        "sparsity": sparsity,
        "log_smallest": min(_log(dense_bytes(tensor)) for tensor in tensors),
    }


def _planes(key: OperatorKey, tensors: Sequence[Mapping[str, Any]], roof: Roof) -> Row:
    """Return the geometry of norms, poolings and reductions. Many kernels use one block per channel."""
    reduced = _reduced(key)
    shape: Sequence[int] = max((tensor["shape"] for tensor in tensors), key=math.prod, default=())
    row = {"log_reduced": _log(reduced), "log_results": _log(math.prod(shape) / reduced) if reduced else 0.0}
    if key.name == "cudnn_batch_norm" and len(key.arguments) > 5:
        row["is_training"] = float(bool(key.arguments[5]))
    if key.name in ("max_pool2d_with_indices", "avg_pool2d"):
        row["pool_window"] = float(math.prod(key.arguments[1]))
    if len(shape) != 4:
        return row
    images, channels, height, width = shape
    waves = channels / max(roof.multiprocessors, 1)
    return {
        **row,
        "log_channels": _log(channels),
        "log_plane": _log(height * width),
        "log_images": _log(images),
        "even_plane": _even(height * width, VECTOR),
        "channel_fill": _share(waves),
        "channel_waves": float(math.ceil(waves)),
        "log_channel": _log(images * height * width),
    }


def _run_elements(tensor: Mapping[str, Any]) -> int:
    """Return the number of contiguous elements along the last dimensions."""
    due = 1
    for size, step in zip(reversed(tensor["shape"]), reversed(tensor.get("stride") or ()), strict=False):
        if size != 1 and step != due:
            break
        due *= size
    return due


def _is_dense(tensor: Mapping[str, Any]) -> bool:
    """Return whether a tensor is contiguous."""
    shape, stride = tensor["shape"], tensor.get("stride")
    if stride is None:
        return True
    due = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != due:
            return False
        due *= size
    return True


def _is_channels_last(tensor: Mapping[str, Any]) -> bool:
    shape, stride = tensor["shape"], tensor.get("stride")
    return isinstance(stride, (list, tuple)) and len(stride) == 4 and stride[1] == 1 and shape[1] > 1


def _sparsity(key: OperatorKey) -> float:
    return max((float(tensor.get("sparsity", 0.0)) for tensor in key.tensors()), default=0.0)


def _reduced(key: OperatorKey) -> int:
    """Return the number of elements that a normalization, softmax or reduction combines; 0 if unknown."""
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
    """Return the family of similar operators, which must not be split between fit and test.

    It is the operator with its weight if it has one, otherwise with the shape of its largest tensor without the batch.
    So the same layer at another batch size is in the same family.
    """
    work = work_of(key)
    if work.gemm is not None and work.family != "attention":
        return f"{key.operator} n{work.gemm.n} k{work.gemm.k} g{work.groups}"
    tensors = sorted(key.tensors(), key=lambda tensor: -math.prod(tensor["shape"]))
    inner = tensors[0]["shape"][1:] if tensors else ()
    return f"{key.operator} {list(inner)}"
