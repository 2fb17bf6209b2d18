"""Temporary memory of convolutions, in order: format copies by torch, cuDNN workspaces, sums for a bias gradient.

Source: the allocator's history of 80,075 convolutions on an H200 with torch 2.11 and cuDNN 9.19, November 2026
(bench/estimate/conv_workspaces.py). Copies and sums match to the byte, in their order, in all of them
(bench/estimate/conv_copies.py). Workspaces: :mod:`.convolution_guess`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gpuledger.simulate.convolutions.convolution_guess import Workspace, workspace_of
from gpuledger.simulate.convolutions.convolution_rows import (
    COLUMNS,
    DTYPES,
    FIRST,
    LAST,
    OTHER,
    PLACE,
    Row,
    backward_row,
    forward_row,
)
from gpuledger.simulate.convolutions.convolution_terms import DATA_GRADIENT, FORWARD, WEIGHT_GRADIENT, key_of
from gpuledger.simulate.convolutions.sums import sum_bytes
from gpuledger.simulate.traits import Sizing, reference_sizing

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """Bytes of blocks: until the end, and during each result. ``workspaces`` are those that belong to cuDNN.

    ``between`` are allocated before the second result, and ``after`` after it. Both are freed at the end.
    """

    before: Sizes = ()
    beside: tuple[Sizes, ...] = ()
    between: Sizes = ()
    after: Sizes = ()
    key: Row = ()
    workspaces: tuple[Workspace, ...] = ()


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _is_last(row: Row) -> bool:
    """Return whether cuDNN runs in channels last: if data or weight have that format."""
    return LAST in (row[PLACE["data_format"]], row[PLACE["weight_format"]])


def _is_depthwise(row: Row) -> bool:
    """Return whether torch's own depthwise kernels can run it."""
    return row[PLACE["groups"]] == row[PLACE["channels"]] > 1


def _has_both_formats(tensor: Any) -> bool:
    """Return whether a dense tensor is in channels first and in channels last at once."""
    return bool(tensor.shape[1] == 1 or math.prod(tensor.shape[2:]) == 1)


def _is_torchs_own(row: Row) -> bool:
    """Return whether a kernel of torch runs a convolution, which has no workspace, and not one of cuDNN.

    Source: use_cudnn_depthwise and check_cudnn_depthwise_workload_with_filter in aten/src/ATen/native/Convolution.cpp.
    """
    got: dict[str, int] = dict(zip(COLUMNS, row, strict=False))
    dims, batch, channels = got["dims"], got["batch"], got["channels"]
    if not _is_depthwise(row) or _is_last(row) or got["transposed"]:
        return False
    last = dims - 1
    width, kernel, stride = got[f"size{last}"], got[f"kernel{last}"], got[f"stride{last}"]
    is_dilated = any(got[f"dilation{axis}"] > 1 for axis in range(dims))
    is_flat = dims == 1 or got["size0"] == 1
    if DTYPES[got["dtype"]] != "float16" or dims == 3 or is_dilated or channels < 32:
        return True
    if is_flat and stride == 1:
        return False
    if dims == 1 or got["kernel0"] != kernel or kernel not in (1, 3, 5) or width < 7 or got["stride0"] != stride:
        return True
    if stride != 2 or batch == 1:
        return not (stride == 1 or (stride == 2 and (kernel > 1 or width <= 28)))
    if kernel == 1:
        return batch > 16 or channels < 128 or width > 7
    return channels < 512 and (channels < 256 or width < 28)


def _weight_copy(row: Row, weight: Any) -> Sizes:
    """Return torch's copy of a weight in the other format."""
    same = not _is_last(row) or row[PLACE["weight_format"]] == LAST
    if same or _is_depthwise(row) or _has_both_formats(weight):
        return ()
    return (_bytes(weight),)


def _other_copy(row: Row, name: str, tensor: Any) -> Sizes:
    """Return torch's copy of data or a gradient in the format that cuDNN uses."""
    wanted = LAST if _is_last(row) else FIRST
    found = row[PLACE[name]]
    return () if found == wanted or (found != OTHER and _has_both_formats(tensor)) else (_bytes(tensor),)


def needs_workspace(data: Any, capability: tuple[int, int]) -> bool:
    """Return whether cuDNN uses workspaces as on the H200.

    Source: 61 trainings in float32 on RTX 3060 and RTX 4060 with torch 2.6 and CUDA 12.4 (bench/estimate/strangers.py).
    Without workspaces, their memory is predicted best. Half precision was not measured there.
    """
    return capability >= _MEASURED_CAPABILITY or data.element_size() < _FLOAT_BYTES


CUDNN = "cuDNN workspace"
"""Label of memory that cuDNN does without if the GPU is full: torch then tries the next algorithm."""
_MEASURED_CAPABILITY, _FLOAT_BYTES = (9, 0), 4


def _workspace(data: Any, row: Row, operation: int, sizing: Sizing) -> Workspace:
    """Return cuDNN's workspace of an operation."""
    if _is_torchs_own(row):
        return Workspace(0, True)
    found = workspace_of(key_of(row), operation)
    size_bytes = sizing.one(lambda gpu: found.size_bytes if needs_workspace(data, gpu.compute_capability) else 0)
    measured = found.measured and needs_workspace(data, sizing.own.compute_capability)
    return Workspace(size_bytes, measured)


def forward_held(args: Any, sizing: Sizing | None = None) -> Held:
    """Return the temporary memory of ``aten.convolution``, without its result.

    Args:
        args: Arguments of the operator.
        sizing: Computes sizes that depend on the GPU; by default for the one that was measured.
    """
    row = forward_row(args)
    if row is None:
        return Held(beside=((),))
    found = _workspace(args[0], row, DATA_GRADIENT if args[6] else FORWARD, sizing or reference_sizing())
    copied = _other_copy(row, "data_format", args[0])
    return Held(copied, ((*_weight_copy(row, args[1]), found.size_bytes),), key=key_of(row), workspaces=(found,))


def backward_held(args: Any, sizing: Sizing | None = None) -> Held:
    """Return the temporary memory of ``aten.convolution_backward``, without its three gradients.

    Args:
        args: Arguments of the operator.
        sizing: Computes sizes that depend on the GPU; by default for the one that was measured.
    """
    sizing = sizing or reference_sizing()
    row = backward_row(args)
    if row is None:
        return Held(beside=((), (), ()))
    gradient, data, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
    of_data = _workspace(data, row, FORWARD if transposed else DATA_GRADIENT, sizing)
    of_weight = _workspace(data, row, WEIGHT_GRADIENT, sizing)
    again = _other_copy(row, "gradient_format", gradient)
    is_own = _is_torchs_own(row)
    twice = bool(again and mask[0] and not _is_last(row) and not transposed and not is_own)
    late = is_own and row[PLACE["dims"]] == 3
    before = _other_copy(row, "data_format", data) + (() if twice or late else again)
    beside_data = (again if twice else ()) + _weight_copy(row, weight)
    return Held(
        before,
        ((*beside_data, of_data.size_bytes), (of_weight.size_bytes,), _bias_bytes(gradient, row, sizing)),
        again if twice else (),
        again if late else (),
        key_of(row),
        (of_data, of_weight) if mask[0] else (of_weight,),
    )


def _bias_bytes(gradient: Any, row: Row, sizing: Sizing) -> Sizes:
    """Return the temporary memory of summing a gradient over images and positions."""
    if not row[PLACE["bias"]]:
        return ()
    places = math.prod(gradient.shape[2:])
    along_places = row[PLACE["gradient_format"]] in (FIRST, OTHER) and places > 1
    inputs, outputs = gradient.shape[0] * places, gradient.shape[1]
    return sizing.many(lambda gpu: sum_bytes(inputs, outputs, gpu.multiprocessors, along_inputs=along_places))
