"""Sums, products and functions of sparse tensors.

Source of sizes: aten/src/ATen/native/sparse/cuda. Buffers of cuSPARSE are not included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from gpuledger.simulate.gpu.sizes import caller, say_largest
from gpuledger.simulate.gpu.sparse.parts import (
    Kernel,
    Parts,
    aten,
    copied,
    is_sparse,
    is_whole,
    made,
    new,
    parts_of,
    with_parts,
)
from gpuledger.simulate.gpu.sparse.tensors import coalesced
from gpuledger.simulate.temporaries.spaces import argument, bytes_of

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.dispatch import SimulatedMode

_INT32_BYTES, _INT64_BYTES = 4, 8
_POOLS = 4
"""Tables of 64-bit integers, one entry per index, with which a softmax finds the entries of each row."""


def _sum(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the sum or difference of two sparse tensors, with the entries of both, or of a tensor and one.

    Source: ``add_out_sparse_cuda`` and ``add_out_dense_sparse_cuda`` in
    aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu.
    """
    first, second = parts_of(args[0]), parts_of(args[1])
    is_in_place = func in (aten.add_.Tensor, aten.sub_.Tensor)
    if first is None or second is None:
        return _sum_with_sparse(mode, func, args, is_in_place)
    parts = _parts_of_sum(mode, func, args[0], first, second)
    if is_in_place:
        return with_parts(args[0], parts)
    return made(mode, args[0], parts)


def _parts_of_sum(mode: SimulatedMode, func: Any, like: torch.Tensor, first: Parts, second: Parts) -> Parts:
    """Return the entries of two COO tensors one after the other, or as many of compressed ones, which are merged."""
    if like.layout is torch.sparse_coo:
        pairs = zip((1, 0), first, second, strict=True)
        return tuple(mode.run_on_card(aten.cat.default, ([one, other], dim), {}) for dim, one, other in pairs)
    say_largest(mode, "add")
    count = min(first[2].shape[0] + second[2].shape[0], like.numel())
    plain, values = new(mode, func, (count,), first[1]), new(mode, func, (count,), first[2])
    return new(mode, func, first[0].shape, first[0]), plain, values


def _sum_with_sparse(mode: SimulatedMode, func: Any, args: Any, is_in_place: bool) -> Any:
    """Return a tensor plus a sparse one of its size: itself in place, otherwise a new tensor."""
    if not all(isinstance(one, torch.Tensor) for one in args[:2]) or args[0].shape != args[1].shape:
        return NotImplemented
    if is_in_place:
        return args[0]
    return new(mode, func, args[0].shape, args[0], torch.promote_types(args[0].dtype, args[1].dtype))


def _product(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a sparse tensor times or by a number, a tensor or another sparse one.

    The entries of a product of two are assumed to be those of the smaller one.
    """
    first, second = args[0], args[1]
    is_pair = is_sparse(first) and is_sparse(second)
    if is_pair and _entries(second) < _entries(first):
        first, second = second, first
    sparse, other = (first, second) if is_sparse(first) else (second, first)
    parts = parts_of(sparse)
    if parts is None:
        return NotImplemented
    is_table = isinstance(other, torch.Tensor) and other.dim() > 0
    with mode.device.borrow((bytes_of(parts[-1]),) if is_table else (), func):
        values = new(mode, func, parts[-1].shape, parts[-1], torch.result_type(parts[-1], other))
    shares = sparse.layout is torch.sparse_coo and not is_pair
    indices = parts[:-1] if shares else copied(mode, *parts[:-1])
    return made(mode, sparse, (*indices, values), coalesced=is_whole(sparse))


def _entries(sparse: torch.Tensor) -> int:
    parts = parts_of(sparse)
    return 0 if parts is None else parts[-1].shape[0]


def _of_values(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a function of each entry, with copies of the indices."""
    parts = parts_of(args[0])
    if parts is None:
        return NotImplemented
    values = mode.run_on_card(func, (parts[-1], *args[1:]), kwargs)
    return made(mode, args[0], (*copied(mode, *parts[:-1]), values), coalesced=is_whole(args[0]))


def _in_place(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the sparse tensor of which only the values change."""
    return NotImplemented if parts_of(args[0]) is None else args[0]


def _matrix_product(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a product with a sparse matrix. Torch fills a tensor of zeros, to which it adds the product.

    Source: ``_sparse_mm`` and ``_sparse_csr_mm`` in aten/src/ATen/native/sparse.
    """
    first, second = args[0], args[1]
    if is_sparse(first) and is_sparse(second):
        return _product_of_sparse(mode, func, first, second)
    sparse, dense = (first, second) if is_sparse(first) else (second, first)
    if parts_of(sparse) is None:
        return NotImplemented
    size = (*first.shape[:-1], *second.shape[1:]) if second.dim() < 3 else (*first.shape[:-1], second.shape[-1])
    zeros_bytes = math.prod(size) * dense.element_size()
    with mode.device.borrow((zeros_bytes,), func):
        return _added(mode, func, sparse, dense, size)


def _matrix_product_added(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a tensor plus a product with a sparse matrix."""
    first, second = args[1], args[2]
    sparse, dense = (first, second) if is_sparse(first) else (second, first)
    if parts_of(sparse) is None or is_sparse(dense):
        return NotImplemented
    return _added(mode, func, sparse, dense, (first.shape[0], second.shape[1]))


def _added(mode: SimulatedMode, func: Any, sparse: torch.Tensor, dense: torch.Tensor, size: Any) -> torch.Tensor:
    """Return a product. A COO matrix is sorted, and its indices are copied; its product is computed in columns.

    Source: ``s_addmm_out_sparse_dense_cuda`` in aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu.
    """
    result = new(mode, func, size, dense)
    if sparse.layout is torch.sparse_coo:
        count = _entries(sparse)
        if not is_whole(sparse):
            coalesced(mode, aten._coalesce.default, (sparse,), {})
        sizes: tuple[int, ...] = (
            count * _INT32_BYTES,
            (sparse.shape[-2] + 1) * _INT32_BYTES,
            bytes_of(result) * (result.dim() == 2),
        )
    else:
        parts = parts_of(sparse)
        sizes = tuple(map(bytes_of, parts or ())) if sparse.layout is torch.sparse_csc else ()
    with mode.device.borrow(sizes, func):
        pass
    return result


def _product_of_sparse(mode: SimulatedMode, func: Any, first: torch.Tensor, second: torch.Tensor) -> Any:
    """Return the product of two sparse matrices. Their entries are assumed to be spread uniformly."""
    first_parts, second_parts = parts_of(first), parts_of(second)
    if first_parts is None or second_parts is None:
        return NotImplemented
    mode.say(f"{caller()}: the entries of a product of sparse matrices were assumed to be spread uniformly.")
    rows, columns, between = first.shape[0], second.shape[1], max(first.shape[1], 1)
    share = -math.expm1(-_entries(first) * _entries(second) / max(rows * columns * between, 1))
    count = min(math.ceil(rows * columns * share), rows * columns)
    values = new(mode, func, (count,), first_parts[-1])
    if first.layout is torch.sparse_coo:
        indices: Parts = (new(mode, func, (2, count), first_parts[0]),)
    else:
        indices = new(mode, func, (rows + 1,), first_parts[0]), new(mode, func, (count,), first_parts[1])
    return made(mode, first, (*indices, values), size=(rows, columns), coalesced=True)


def _sampled(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a product of dense matrices at the indices of a sparse one, all of which are copied."""
    parts = parts_of(args[0])
    return NotImplemented if parts is None else made(mode, args[0], copied(mode, *parts), coalesced=is_whole(args[0]))


def _softmax(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a softmax, or its gradient, with indices of its own.

    Source: aten/src/ATen/native/sparse/cuda/SoftMax.cu.
    """
    if parts_of(args[0]) is None:
        return NotImplemented
    given = args[0] if is_whole(args[0]) else coalesced(mode, aten._coalesce.default, args[:1], {})
    parts = parts_of(given)
    assert parts is not None
    result = made(mode, given, copied(mode, *parts), coalesced=True)
    tables = [parts[0].shape[1] * _INT64_BYTES] * _POOLS
    with mode.device.borrow([*tables, bytes_of(parts[1])], func):
        pass
    return result


def _sum_along(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the sum along dimensions: sparse if a sparse dimension remains, with an entry for each of before."""
    parts = parts_of(args[0])
    if parts is None or args[0].layout is not torch.sparse_coo:
        return NotImplemented
    indices, values = parts
    sparse_dims, total = indices.shape[0], args[0].dim()
    summed = {dim % total for dim in argument(args, kwargs, 1, "dim")}
    size = [length for dim, length in enumerate(args[0].shape) if dim not in summed]
    kept = [dim for dim in range(sparse_dims) if dim not in summed]
    entry = [length for dim, length in enumerate(args[0].shape) if dim >= sparse_dims and dim not in summed]
    if not kept:
        return new(mode, func, size, values)
    if len(kept) < sparse_dims:
        say_largest(mode, "sum")
    count = min(values.shape[0], math.prod(args[0].shape[dim] for dim in kept))
    places = new(mode, func, (len(kept), count), indices)
    return made(mode, args[0], (places, new(mode, func, (count, *entry), values)), size=size, coalesced=True)


def _sum_gradient(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the gradient of a sum along dimensions, with the entries of its argument."""
    parts = parts_of(args[1])
    if parts is None:
        return NotImplemented
    return made(mode, args[1], copied(mode, *parts), coalesced=is_whole(args[1]))


def _joined(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return COO tensors along a dimension that is in all of them, or that is new (``stack``)."""
    sparse = args[0]
    parts = [one for one in map(parts_of, sparse) if one is not None]
    if len(parts) < len(sparse) or sparse[0].layout is not torch.sparse_coo:
        return NotImplemented
    dim, is_new = argument(args, kwargs, 1, "dim", 0), func is aten.stack.default
    stands = [mode.make(one.shape, one) for one in sparse]
    size = mode.fake(func, (stands, dim), {}).shape
    count = sum(_entries(one) for one in sparse)
    places = new(mode, func, (parts[0][0].shape[0] + is_new, count), parts[0][0])
    values = new(mode, func, (count, *parts[0][1].shape[1:]), parts[0][1])
    return made(mode, sparse[0], (places, values), size=size, coalesced=all(map(is_whole, sparse)))


def _unary(*names: str) -> Iterable[Any]:
    for name in names:
        packet = getattr(aten, name)
        yield from (getattr(packet, overload) for overload in packet.overloads() if "out" not in overload)


MATHEMATICS: dict[Any, Kernel] = {
    **dict.fromkeys((aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor), _sum),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar), _product),
    **dict.fromkeys((aten.mul_.Tensor, aten.div_.Tensor, aten.zero_.default), _in_place),
    **dict.fromkeys((aten.mm.default, aten.mv.default, aten.bmm.default), _matrix_product),
    **dict.fromkeys((aten.addmm.default, aten._sparse_addmm.default), _matrix_product_added),
    aten._sparse_sparse_matmul.default: _matrix_product,
    aten.sparse_sampled_addmm.default: _sampled,
    **dict.fromkeys((aten._sparse_softmax.default, aten._sparse_log_softmax.default), _softmax),
    aten._sparse_softmax_backward_data.default: _softmax,
    aten._sparse_log_softmax_backward_data.default: _softmax,
    aten._sparse_sum.dim: _sum_along,
    aten._sparse_sum_backward.default: _sum_gradient,
    **dict.fromkeys((aten.cat.default, aten.stack.default), _joined),
    **dict.fromkeys(_unary("neg", "abs", "sqrt", "sin", "tanh", "relu", "sign", "floor", "round", "pow"), _of_values),
}
"""Operator -> its kernel, if an argument is sparse."""
