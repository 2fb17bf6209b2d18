"""Temporary memory of convolutions, in order: format copies by torch, cuDNN workspaces, sums for a bias gradient.

Source: the allocator's history of 59,243 convolutions on an H200 with torch 2.11 and cuDNN 9.19, November 2026
(bench/estimate/conv_workspaces.py). Copies and sums match to the byte. Workspaces: :mod:`.convolution_guess`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gpuledger.simulate.convolutions.convolution_guess import Workspace, workspace_of
from gpuledger.simulate.convolutions.convolution_rows import FIRST, LAST, OTHER, PLACE, Row, backward_row, forward_row
from gpuledger.simulate.convolutions.convolution_terms import DATA_GRADIENT, FORWARD, WEIGHT_GRADIENT, key_of
from gpuledger.simulate.convolutions.sums import sum_bytes
from gpuledger.simulate.traits import Sizing, reference_sizing

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """Bytes of blocks: until the end, and during each result. ``workspaces`` are those that belong to cuDNN.

    ``between`` are allocated before the second result and freed at the end.
    """

    before: Sizes = ()
    beside: tuple[Sizes, ...] = ()
    between: Sizes = ()
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


def _weight_copy(row: Row, weight: Any) -> Sizes:
    """Return torch's copy of a weight in the other format."""
    same = not _is_last(row) or row[PLACE["weight_format"]] == LAST
    if same or _is_depthwise(row) or math.prod(weight.shape[2:]) == 1:
        return ()
    return (_bytes(weight),)


def _other_copy(row: Row, name: str, tensor: Any) -> Sizes:
    """Return torch's copy of data or a gradient in the format that cuDNN uses."""
    wanted = LAST if _is_last(row) else FIRST
    return () if row[PLACE[name]] == wanted else (_bytes(tensor),)


def needs_workspace(data: Any, capability: tuple[int, int]) -> bool:
    """Return whether cuDNN uses workspaces as on the H200.

    Source: 61 trainings in float32 on RTX 3060 and RTX 4060 with torch 2.6 and CUDA 12.4 (bench/estimate/strangers.py).
    Without workspaces, their memory is predicted best. Half precision was not measured there.
    """
    return capability >= _MEASURED_CAPABILITY or data.element_size() < _FLOAT_BYTES


CUDNN = "cuDNN workspace"
"""Label of memory that cuDNN does without if the GPU is full: torch then tries the next algorithm."""
_MEASURED_CAPABILITY, _FLOAT_BYTES = (9, 0), 4


def _workspace(data: Any, key: Row, operation: int, sizing: Sizing) -> Workspace:
    """Return cuDNN's workspace of an operation."""
    found = workspace_of(key, operation)
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
    key = key_of(row)
    found = _workspace(args[0], key, DATA_GRADIENT if args[6] else FORWARD, sizing or reference_sizing())
    copied = _other_copy(row, "data_format", args[0])
    return Held(copied, ((*_weight_copy(row, args[1]), found.size_bytes),), (), key, (found,))


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
    key = key_of(row)
    of_data = _workspace(data, key, FORWARD if transposed else DATA_GRADIENT, sizing)
    of_weight = _workspace(data, key, WEIGHT_GRADIENT, sizing)
    again = _other_copy(row, "gradient_format", gradient)
    twice = bool(again and mask[0] and not _is_last(row) and not transposed and not _is_depthwise(row))
    before = _other_copy(row, "data_format", data) + (() if twice else again)
    beside_data = (again if twice else ()) + _weight_copy(row, weight)
    return Held(
        before,
        ((*beside_data, of_data.size_bytes), (of_weight.size_bytes,), _bias_bytes(gradient, row, sizing)),
        again if twice else (),
        key,
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
