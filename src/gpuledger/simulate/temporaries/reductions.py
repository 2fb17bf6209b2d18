"""Sums and what is made of them: partial results, copies in another dtype, and losses before they are reduced."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from gpuledger.simulate.convolutions.sums import sum_bytes
from gpuledger.simulate.temporaries.spaces import Rule, Spaces, argument, bytes_of, is_dense

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.device import SimulatedDevice
    from gpuledger.simulate.traits import Traits

aten = torch.ops.aten
_FLOAT_BYTES = 4


def _sum(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """A sum or mean: a copy of integers in the dtype of the sum, and partial sums of thread blocks in global memory.

    Source: make_reduction_from_out_ty in aten/src/ATen/native/ReduceOpsUtils.h, and Reduce.cuh. Partial sums are those
    of results that are adjacent in memory, as of a bias gradient or a mean over pictures in channels_last.
    """
    tensor = args[0]
    dtype = _dtype_of(tensor, argument(args, kwargs, 3, "dtype"))
    copied = _converted(tensor, dtype)
    held = _partial_sums(tensor, argument(args, kwargs, 1, "dim"), device, max(dtype.itemsize, _FLOAT_BYTES))
    return Spaces("sum", before=copied, after=held) if copied or held else None


def _largest(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """As of a sum, but in the dtype of the data."""
    held = _partial_sums(args[0], argument(args, kwargs, 1, "dim"), device, args[0].element_size())
    return Spaces("largest", after=held) if held else None


def _running_sum(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """A copy in the dtype that was asked for, which half precision needs here, too."""
    dtype = kwargs.get("dtype")
    if dtype is None or dtype == args[0].dtype:
        return None
    return Spaces("sum", before=(args[0].numel() * dtype.itemsize,))


def _sum_of_all(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    copied = _converted(args[0], _dtype_of(args[0], kwargs.get("dtype")))
    return Spaces("sum", before=copied) if copied else None


def _dtype_of(tensor: torch.Tensor, asked: torch.dtype | None) -> torch.dtype:
    """Return the dtype of a sum."""
    if asked is not None:
        return asked
    return tensor.dtype if tensor.is_floating_point() or tensor.is_complex() else torch.int64


def _converted(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[int, ...]:
    """Return the bytes of a copy in the dtype of the sum. Half precision is converted in the kernel."""
    if dtype == tensor.dtype or (tensor.dtype in (torch.float16, torch.bfloat16) and dtype == torch.float32):
        return ()
    return (tensor.numel() * dtype.itemsize,)


def _partial_sums(tensor: torch.Tensor, dims: Any, device: SimulatedDevice, each_bytes: int) -> tuple[int, ...]:
    """Return the bytes of partial sums and of counters; none if reduced values are adjacent in memory."""
    if not dims or tensor.dim() < 2 or not is_dense(tensor):
        return ()
    reduced = {dim % tensor.dim() for dim in ([dims] if isinstance(dims, int) else dims)}
    wide = [dim for dim in range(tensor.dim()) if tensor.shape[dim] > 1]
    if len(reduced) == tensor.dim() or not wide or min(wide, key=lambda dim: tensor.stride()[dim]) in reduced:
        return ()
    inputs = math.prod(tensor.shape[dim] for dim in reduced)
    outputs = tensor.numel() // inputs if inputs else 0

    def sizes(gpu: Traits) -> tuple[int, ...]:
        held = sum_bytes(inputs, outputs, gpu.multiprocessors, along_inputs=False)
        return (held[0] * each_bytes // _FLOAT_BYTES, *held[1:]) if held else ()

    return device.sizing.many(sizes)


def _logsumexp(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """The exponentials. Source: aten/src/ATen/native/ReduceOps.cpp."""
    return Spaces("logsumexp", before=(bytes_of(args[0]),))


def _huber(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """The loss of each element. Source: aten/src/ATen/native/Loss.cpp."""
    reduction = argument(args, kwargs, 2, "reduction", 1)
    return Spaces("loss", before=(bytes_of(args[0]),)) if reduction else None


def _binary_cross_entropy(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """The logarithms, and the loss of each element. Source: aten/src/ATen/native/Loss.cpp."""
    reduced = argument(args, kwargs, 4, "reduction", 1) != 0
    return Spaces("loss", before=(bytes_of(args[0]),) * (1 + reduced))


def _absolute(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """A complex result, from which real numbers are copied. Source: aten/src/ATen/native/UnaryOps.cpp."""
    return Spaces("complex result", before=(bytes_of(args[0]),)) if args[0].is_complex() else None


def _distance(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """The difference. Source: aten/src/ATen/native/Distance.cpp."""
    return Spaces("dist", before=(bytes_of(args[0]),))


RULES: dict[Any, Rule] = {
    aten.dist.default: _distance,
    aten.abs.default: _absolute,
    aten.angle.default: _absolute,
    aten.sum.dim_IntList: _sum,
    aten.sum.default: _sum_of_all,
    aten.mean.dim: _sum,
    aten.amax.default: _largest,
    aten.amin.default: _largest,
    aten.cumsum.default: _running_sum,
    aten.cumprod.default: _running_sum,
    aten.logsumexp.default: _logsumexp,
    aten.huber_loss.default: _huber,
    aten.binary_cross_entropy_with_logits.default: _binary_cross_entropy,
}
