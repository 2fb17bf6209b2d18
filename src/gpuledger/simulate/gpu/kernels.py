"""Fake kernels of CUDA operators for which torch has none, or one for the CPU only."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from gpuledger.simulate.convolutions.convolutions import CUDNN, backward_held
from gpuledger.simulate.gpu.recurrent import RECURRENT, named_arguments
from gpuledger.simulate.gpu.sizes import histogram, index_masked, positions
from gpuledger.simulate.gpu.sparse.mathematics import MATHEMATICS
from gpuledger.simulate.gpu.sparse.parts import Kernel, has_sparse
from gpuledger.simulate.gpu.sparse.tensors import TENSORS
from gpuledger.simulate.temporaries.mathematics import ORTHOGONAL_BYTES
from gpuledger.simulate.temporaries.pictures import CONTIGUOUS_RESULTS
from gpuledger.simulate.temporaries.products import cublas_workspace
from gpuledger.simulate.temporaries.rules import workspaces_of
from gpuledger.simulate.temporaries.spaces import bytes_of, is_dense

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.dispatch import SimulatedMode

aten = torch.ops.aten


def _value(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    return mode.placeholder(args[0])


def _unscale(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    return None


_ADDS_ITSELF = ("VarMeanBackward0", "StdMeanBackward0")
"""Functions of autograd that add two gradients themselves, which is not in place."""


def _add(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Add gradients in place if the first is not referenced elsewhere; for a tensor subclass, autograd does not."""
    first, second = args[0], args[1]
    if mode.device.in_backward and _running_function() in _ADDS_ITSELF:
        return NotImplemented
    if kwargs or len(args) > 2 or not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return NotImplemented
    if first.shape != second.shape or first.dtype != second.dtype:
        return NotImplemented
    return _in_place(mode, first)


def _in_place(mode: SimulatedMode, first: torch.Tensor) -> Any:
    """Return ``first`` if the autograd engine, and not Python, runs the operator and needs no copy."""
    if not mode.device.in_backward or torch.is_grad_enabled() or first.requires_grad:
        return NotImplemented
    if not is_dense(first) or mode.called_from_python():
        return NotImplemented
    return mode.fake(aten.detach.default, (first,), {})


def _written(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Write into the zeros that a backward function has made; for a tensor subclass, autograd makes a copy."""
    result = _in_place(mode, args[0])
    if result is NotImplemented:
        return result
    if func in _AT_INDICES:
        args = (args[0], positions(mode, args[1])[0], *args[2:])
    spaces = workspaces_of(func, args, kwargs, mode.device)
    if spaces is not None:
        with mode.device.borrow((*spaces.before, *spaces.after), spaces.label):
            pass
    return result


def _selected(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the entries of a mask, as indexing does."""
    data, mask = args
    if data.shape != mask.shape:
        return NotImplemented
    return index_masked(mode, aten.index.Tensor, (data, [mask]), {})


_AT_INDICES = (aten.index_put.default, aten._unsafe_index_put.default)
_REDUCTION = {
    aten.mse_loss.default: (2, 1),
    aten.smooth_l1_loss.default: (2, 1),
    aten.binary_cross_entropy.default: (3, 0),
    aten.soft_margin_loss.default: (2, 0),
}
"""Losses that keep the memory of the loss of each element -> position of ``reduction``, more copies."""


def _loss(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a loss. Its reduced value is in the first element of a storage for all elements.

    Source: aten/src/ATen/native/Loss.cpp. The result has the size of the data before it is reduced.
    """
    place, copies = _REDUCTION[func]
    if not (args[place] if len(args) > place else kwargs.get("reduction", 1)):
        return NotImplemented
    result = mode.fake(func, args, kwargs)
    whole = mode.make(torch.broadcast_shapes(args[0].shape, args[1].shape), result)
    mode.account(func, whole)
    with mode.device.borrow((whole.numel() * whole.element_size(),) * copies, func):
        pass
    with mode.fake_mode:
        loss = whole.as_strided((), ())
    mode.values.follow(func, args, kwargs, loss)
    return loss


def _log_sigmoid(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result, and a buffer that only the CPU uses."""
    result, _ = mode.fake(func, args, kwargs)
    mode.account(func, result)
    return result, mode.make((0,), result)


def _least_squares(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the solution, and residuals if there are more rows than columns. CUDA returns no rank."""
    matrix, target = args[0], args[1]
    rows, columns = matrix.shape[-2:]
    is_vector = target.dim() == 1 or (target.dim() == matrix.dim() - 1 and target.shape == matrix.shape[:-1])
    batch = torch.broadcast_shapes(matrix.shape[:-2], target.shape[: -1 if is_vector else -2])
    width = () if is_vector else target.shape[-1:]
    made = (
        mode.make((*batch, columns, *width), target),
        mode.make((*batch, *width) if rows > columns else (0,), target),
        mode.make((0,), target, torch.int64),
        mode.make((0,), target),
    )
    mode.device.keep(*cublas_workspace(mode.device), func)
    with mode.device.borrow((bytes_of(matrix), bytes_of(target), ORTHOGONAL_BYTES * (matrix.dim() == 2)), func):
        mode.account(func, made)
    return made


def _contiguous(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a contiguous result where the CPU has one in channels_last."""
    made = mode.fake(func, args, kwargs)
    if made.is_contiguous():
        return NotImplemented
    spaces = workspaces_of(func, args, kwargs, mode.device)
    with mode.device.borrow(() if spaces is None else spaces.before, func):
        result = mode.make(made.shape, made)
        mode.account(func, result)
    return result


def _from_columns(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a result in a storage that is as large as the columns, because it has their size before it is resized.

    Source: aten/src/ATen/native/cuda/Col2Im.cu.
    """
    made = mode.fake(func, args, kwargs)
    whole = mode.make((max(args[0].numel(), made.numel()),), made)
    mode.account(func, whole)
    with mode.fake_mode:
        return whole.as_strided(made.shape, made.stride())


_BY_PARTS = "BinaryCrossEntropyWithLogitsBackward0"
"""A function of autograd that computes in place, but not for tensor subclasses."""


def _computed_in_place(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    if not mode.device.in_backward or not all(isinstance(one, torch.Tensor) for one in args):
        return NotImplemented
    if torch.broadcast_shapes(args[0].shape, args[1].shape) != args[0].shape:
        return NotImplemented
    return _in_place(mode, args[0]) if _running_function() == _BY_PARTS else NotImplemented


def _running_function() -> str:
    """Return the class of the autograd function that runs. A program's own function can have a ``name`` of its own."""
    return type(torch._C._current_autograd_node()).__name__


def _like_data(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    result = mode.make(args[1].shape, args[1])
    mode.account(func, result)
    return result


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


_DENSE: dict[Any, Kernel] = {
    aten._local_scalar_dense.default: _value,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    **RECURRENT,
    aten.add.Tensor: _add,
    aten.scatter.src: _written,
    aten.scatter.value: _written,
    aten.scatter_add.default: _written,
    aten.index_add.default: _written,
    aten.index_put.default: _written,
    aten._unsafe_index_put.default: _written,
    aten.masked_scatter.default: _written,
    aten.masked_select.default: _selected,
    aten.mse_loss.default: _loss,
    aten.smooth_l1_loss.default: _loss,
    aten.binary_cross_entropy.default: _loss,
    aten.soft_margin_loss.default: _loss,
    **dict.fromkeys(CONTIGUOUS_RESULTS, _contiguous),
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.col2im.default: _from_columns,
    aten.linalg_lstsq.default: _least_squares,
    aten.multi_margin_loss_backward.default: _like_data,
    aten.multilabel_margin_loss_backward.default: _like_data,
    aten.index.Tensor: index_masked,
    aten._grouped_mm.default: _grouped_product,
    aten.histc.default: histogram,
    aten.convolution_backward.default: _convolution_backward,
    aten.mul.Tensor: _computed_in_place,
    aten.sub.Tensor: _computed_in_place,
}


def _sparse_first(sparse: Kernel, dense: Kernel | None) -> Kernel:
    """Return the kernel of an operator for tensors of any layout."""

    def kernel(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
        if has_sparse(args):
            return sparse(mode, func, args, kwargs)
        return NotImplemented if dense is None else dense(mode, func, args, kwargs)

    return kernel


_MAKES_SPARSE = frozenset(
    {
        aten._sparse_coo_tensor_with_dims_and_tensors.default,
        aten.sparse_compressed_tensor.comp_plain_value_size,
        aten.sparse_compressed_tensor.comp_plain_value,
        aten._sparse_compressed_tensor_unsafe.default,
        aten._embedding_bag_backward.default,
        aten._to_sparse.default,
        aten._to_sparse.sparse_dim,
        aten._to_sparse_csr.default,
        aten._to_copy.default,
    }
)
"""Operators of which all arguments can be dense."""
_SPARSE = {**TENSORS, **MATHEMATICS}

KERNELS: dict[Any, Kernel] = {
    **_DENSE,
    **{
        func: kernel if func in _MAKES_SPARSE else _sparse_first(kernel, _DENSE.get(func))
        for func, kernel in _SPARSE.items()
    },
}
"""Operator -> its fake kernel. If that returns ``NotImplemented``, torch's own fake kernel is used."""
