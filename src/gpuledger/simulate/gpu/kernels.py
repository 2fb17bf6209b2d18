"""Fake kernels of CUDA operators for which torch has none, or one for the CPU only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from gpuledger.simulate.convolutions.convolutions import CUDNN, backward_held
from gpuledger.simulate.gpu.device import parts_of
from gpuledger.simulate.gpu.recurrent import RECURRENT, named_arguments
from gpuledger.simulate.gpu.sizes import (
    bag_gradient,
    coalesced,
    copied_sparse,
    count_of_sparse,
    histogram,
    index_masked,
    is_coalesced,
    masked_by_sparse,
    part_of_sparse,
    same_sparse,
    scaled_sparse,
    set_coalesced,
    sparse_tensor,
    sum_of_sparse,
)
from gpuledger.simulate.gpu.workspaces import is_dense

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.dispatch import SimulatedMode

aten = torch.ops.aten


def _value(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    return mode.placeholder(args[0])


def _unscale(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    return None


def _add(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Add gradients in place if the first is not referenced elsewhere; for a tensor subclass, autograd does not."""
    first, second = args[0], args[1]
    if parts_of(first) is not None:
        return sum_of_sparse(mode, func, args, kwargs)
    if not mode.device.in_engine or torch.is_grad_enabled() or kwargs or len(args) > 2:
        return NotImplemented
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return NotImplemented
    if first.shape != second.shape or first.dtype != second.dtype or first.requires_grad:
        return NotImplemented
    if not is_dense(first) or mode.called_from_python():
        return NotImplemented
    with mode.fake_mode:
        return first.detach()


def _convolution_backward(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the gradients of data, weight and bias, allocated in this order with their temporary memory."""
    made = mode.fake(func, args, kwargs)
    device = mode.device
    held = backward_held(args, device.sizing)
    device.note_convolution(held)
    with ExitStack() as taken:
        taken.enter_context(device.borrow(held.before, func))
        for place, (result, sizes) in enumerate(zip(made, held.beside, strict=True)):
            if place == 1:
                taken.enter_context(device.borrow(held.between, func))
            elif place == 2:
                taken.enter_context(device.borrow(held.after, func))
            if result is not None:
                mode.account(func, result)
                with device.borrow(sizes, CUDNN if place < 2 else func):
                    pass
    return made


def _grouped_product(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the product of groups of rows. Torch's fake kernel accepts bfloat16 only, its CUDA kernel other dtypes."""
    given = named_arguments(func, args, kwargs)
    first, second = given["self"], given["mat2"]
    rows, columns = first.shape[-2], second.shape[-1]
    if first.dim() == second.dim() == 2:
        size: tuple[int, ...] = (given["offs"].shape[0], rows, columns)
    elif first.dim() == second.dim():
        size = (first.shape[0], rows, columns)
    else:
        size = (rows, columns)
    result = mode.make(size, first, given.get("out_dtype"))
    mode.account(func, result)
    return result


KERNELS: dict[Any, Callable[[SimulatedMode, Any, Any, Any], Any]] = {
    aten._local_scalar_dense.default: _value,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    **RECURRENT,
    aten.add.Tensor: _add,
    aten.index.Tensor: index_masked,
    aten._grouped_mm.default: _grouped_product,
    aten.histc.default: histogram,
    aten.convolution_backward.default: _convolution_backward,
    aten._sparse_coo_tensor_with_dims_and_tensors.default: sparse_tensor,
    aten._indices.default: part_of_sparse(0),
    aten._values.default: part_of_sparse(1),
    aten.indices.default: part_of_sparse(0),
    aten.values.default: part_of_sparse(1),
    aten._nnz.default: count_of_sparse,
    aten.is_coalesced.default: is_coalesced,
    aten._coalesced_.default: set_coalesced,
    aten.detach.default: same_sparse,
    aten.clone.default: copied_sparse,
    aten._coalesce.default: coalesced,
    aten._embedding_bag_backward.default: bag_gradient,
    aten.sparse_mask.default: masked_by_sparse,
    aten.add_.Tensor: sum_of_sparse,
    aten.mul.Tensor: scaled_sparse,
    aten.div.Tensor: scaled_sparse,
}
"""Operator -> its fake kernel. If that returns ``NotImplemented``, torch's own fake kernel is used."""
