"""Make, read, copy and convert sparse tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gpuledger.simulate.gpu.sizes import caller, count_set
from gpuledger.simulate.gpu.sparse.parts import (
    COMPRESSED,
    Kernel,
    aten,
    copied,
    is_sparse,
    is_whole,
    made,
    moved,
    new,
    parts_of,
    placed,
    with_parts,
)

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.dispatch import SimulatedMode

_MEAN = 1
"""The mode of ``EmbeddingBag`` that divides by the length of a bag."""
_INDEX_BYTES = 8


def _of_indices(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a COO tensor that keeps its indices and values."""
    parts = placed(mode, args[3]), placed(mode, args[4], kwargs.get("dtype"))
    return with_parts(mode.fake(func, args, kwargs), parts, coalesced=bool(kwargs.get("is_coalesced")))


def _of_compressed_indices(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a CSR or CSC tensor that keeps its indices and values."""
    layout = kwargs.get("layout") or torch.sparse_csr
    if layout not in COMPRESSED:
        return NotImplemented
    size = args[3] if len(args) > 3 else _size_of(mode, args[0], args[1], layout)
    parts = placed(mode, args[0]), placed(mode, args[1]), placed(mode, args[2], kwargs.get("dtype"))
    return made(mode, parts[2], parts, size=size, layout=layout)


def _size_of(mode: SimulatedMode, compressed: torch.Tensor, plain: torch.Tensor, layout: torch.layout) -> Any:
    """Return the size that torch infers from indices; square if the largest of them is not known."""
    known, count = mode.values.of(plain, reads=True), compressed.shape[0] - 1
    if known is None:
        mode.say(f"{caller()}: a sparse tensor was made without a size, and was assumed to be square.")
        return count, count
    other = int(known.max()) + 1 if known.numel() else 0
    return (count, other) if layout is torch.sparse_csr else (other, count)


def _part(place: int) -> Kernel:
    """Return the kernel that returns one part of a sparse tensor."""

    def part(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
        parts = parts_of(args[0])
        return NotImplemented if parts is None else parts[place]

    return part


def _count(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the number of entries."""
    parts = parts_of(args[0])
    return NotImplemented if parts is None else parts[-1].shape[0]


def _is_coalesced(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    return NotImplemented if parts_of(args[0]) is None else is_whole(args[0])


def _set_coalesced(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    if parts_of(args[0]) is None:
        return NotImplemented
    args[0]._gpuledger_coalesced = args[1]
    return args[0]


def _same(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a sparse tensor with the same memory."""
    parts = parts_of(args[0])
    if parts is None:
        return NotImplemented
    return with_parts(mode.fake(func, args, kwargs), parts, coalesced=is_whole(args[0]))


def _copied(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a copy. A COO gradient is not copied: only here, autograd finds it referenced elsewhere."""
    parts = parts_of(args[0])
    if parts is None:
        return NotImplemented
    is_gradient = args[0].layout is torch.sparse_coo and mode.device.in_backward and not mode.called_from_python()
    if not is_gradient:
        parts = copied(mode, *parts)
    return made(mode, args[0], parts, coalesced=is_whole(args[0]))


def _moved(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a copy in another dtype, or of a tensor of the CPU."""
    if not is_sparse(args[0]):
        return _moved_view(mode, func, args, kwargs)
    sparse, dtype = args[0], kwargs.get("dtype")
    parts = parts_of(sparse)
    if parts is None:
        if sparse.layout is not torch.sparse_coo and sparse.layout not in COMPRESSED:
            return NotImplemented
        parts = _real_parts(sparse)
        coalesced = sparse.layout is not torch.sparse_coo or sparse.is_coalesced()
    else:
        coalesced = is_whole(sparse)
    indices = (moved(mode, one, {}) for one in parts[:-1])
    values = moved(mode, parts[-1], {} if dtype is None else {"dtype": dtype})
    return made(mode, sparse, (*indices, values), coalesced=coalesced)


def _moved_view(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a copy of the indices or values of a compressed tensor of the CPU."""
    return moved(mode, args[0], kwargs) if args[0]._is_view() and is_sparse(args[0]._base) else NotImplemented


def _real_parts(sparse: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the parts of a tensor of the CPU, with data or without."""
    if sparse.layout is torch.sparse_coo:
        return sparse._indices(), sparse._values()
    if sparse.layout is torch.sparse_csr:
        return sparse.crow_indices(), sparse.col_indices(), sparse.values()
    return sparse.ccol_indices(), sparse.row_indices(), sparse.values()


def _turned(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a transposed matrix: a copy of a COO tensor, the same memory in the other layout of a compressed one."""
    parts = parts_of(args[0])
    if parts is None:
        return NotImplemented
    size = mode.fake(func, (mode.make(args[0].shape, parts[-1]), *args[1:]), kwargs).shape
    if args[0].layout is torch.sparse_coo:
        return made(mode, args[0], copied(mode, *parts), size=size)
    layout = COMPRESSED[args[0].layout is torch.sparse_csr]
    return made(mode, args[0], parts, size=size, layout=layout)


def _selected(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the entries of a COO tensor at given indices of a dimension; the expected number if that is not known."""
    parts = parts_of(args[0])
    if parts is None or args[0].layout is not torch.sparse_coo:
        return NotImplemented
    dim, index = args[1] % args[0].dim(), args[2]
    size = [*args[0].shape]
    size[dim] = index.numel()
    indices, values = parts
    if dim >= indices.shape[0]:
        chosen = mode.run_on_card(func, (values, dim - indices.shape[0] + 1, index), kwargs)
        return made(mode, args[0], (*copied(mode, indices), chosen), size=size, coalesced=is_whole(args[0]))
    known, wanted = mode.values.of(indices), mode.values.of(index)
    if known is None or wanted is None:
        mode.say(f"{caller()}: the entries of a sparse tensor were assumed to be spread uniformly.")
        count = -(-values.shape[0] * index.numel() // max(args[0].shape[dim], 1))
    else:
        count = int(torch.bincount(known[dim], minlength=args[0].shape[dim])[wanted].sum())
    places = new(mode, func, (indices.shape[0], count), indices)
    return made(mode, args[0], (places, new(mode, func, (count, *values.shape[1:]), values)), size=size)


def _bag_gradient(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the sparse gradient of ``EmbeddingBag``: one row for each index. The mean is divided in a second tensor.

    Source: ``_embedding_bag_sparse_backward`` in aten/src/ATen/native/EmbeddingBag.cpp.
    """
    gradient, indices, kind, is_sparse = args[0], args[1], args[8], args[9]
    if not is_sparse:
        return NotImplemented
    size = indices.numel(), gradient.shape[1]
    selected = new(mode, func, size, gradient)
    values = new(mode, func, size, gradient) if kind == _MEAN else selected
    with mode.fake_mode:
        places = indices.view(1, -1)
    return with_parts(mode.fake(func, args, kwargs), (places, values))


def coalesced(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a COO tensor with each index once. All are different if their values are not known.

    Source: aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu, which sorts flat indices.
    """
    parts = parts_of(args[0])
    if parts is None:
        return NotImplemented
    indices, values = parts
    known, count = mode.values.of(indices), indices.shape[1]
    unique = None if known is None else torch.unique(known, dim=1)
    different = count if unique is None else unique.shape[1]
    with mode.device.borrow([count * _INDEX_BYTES] * 3, func):
        places = mode.make((indices.shape[0], different), indices)
        kept = places, mode.make((different, *values.shape[1:]), values)
        mode.account(func, kept)
    if unique is not None:
        mode.values.keep(places, unique, mode.values.is_assumed(indices))
    return made(mode, args[0], kept, coalesced=True)


def _masked(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the entries of a tensor at the indices of a sparse one."""
    parts = parts_of(args[1])
    if parts is None:
        return NotImplemented
    values = new(mode, func, parts[-1].shape, args[0])
    return made(mode, args[1], (*parts[:-1], values), coalesced=True)


def _dense(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a tensor with all entries, zeros included."""
    parts = parts_of(args[0])
    if parts is None:
        return NotImplemented
    dtype = args[1] if len(args) > 1 else kwargs.get("dtype")
    return new(mode, func, args[0].shape, parts[-1], dtype)


def _coordinates(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a COO tensor of the entries of a dense tensor that are not zero, or of those of a compressed one."""
    layout = kwargs.get("layout")
    if layout in COMPRESSED:
        return _compressed(mode, func, args[:1], {}, layout)
    if layout not in (None, torch.sparse_coo):
        return NotImplemented
    given, parts = args[0], parts_of(args[0])
    if parts is None:
        count, dims = count_set(mode, given), given.dim()
        places = new(mode, func, (dims, count), given, torch.int64)
        return made(mode, given, (places, new(mode, func, (count,), given)), coalesced=True, layout=torch.sparse_coo)
    if given.layout is torch.sparse_coo:
        return _same(mode, aten.detach.default, (given,), {})
    places = new(mode, func, (2, parts[-1].shape[0]), parts[0])
    return made(mode, given, (places, parts[-1]), coalesced=True, layout=torch.sparse_coo)


def _compressed(mode: SimulatedMode, func: Any, args: Any, kwargs: Any, layout: torch.layout = torch.sparse_csr) -> Any:
    """Return a CSR or CSC tensor of a dense, COO or compressed one. The columns and values of a COO tensor are shared.

    Source: ``_to_sparse_csr`` in aten/src/ATen/native/TensorConversions.cpp.
    """
    given, parts = args[0], parts_of(args[0])
    if parts is not None and given.layout is layout:
        return _same(mode, aten.detach.default, (given,), {})
    lines = given.shape[-2 if layout is torch.sparse_csr else -1] + 1
    if parts is None or given.layout in COMPRESSED:
        count = count_set(mode, given) if parts is None else parts[-1].shape[0]
        like = given if parts is None else parts[-1]
        plain, values = new(mode, func, (count,), like, torch.int64), new(mode, func, (count,), like)
    else:
        if not is_whole(given):
            parts = parts_of(coalesced(mode, aten._coalesce.default, (given,), {}))
        assert parts is not None
        with mode.fake_mode:
            plain, values = parts[0][1 if layout is torch.sparse_csr else 0], parts[1]
    pointers = new(mode, func, (lines,), plain)
    return made(mode, given, (pointers, plain, values), layout=layout)


TENSORS: dict[Any, Kernel] = {
    aten._sparse_coo_tensor_with_dims_and_tensors.default: _of_indices,
    aten.sparse_compressed_tensor.comp_plain_value_size: _of_compressed_indices,
    aten.sparse_compressed_tensor.comp_plain_value: _of_compressed_indices,
    aten._sparse_compressed_tensor_unsafe.default: _of_compressed_indices,
    aten._indices.default: _part(0),
    aten.indices.default: _part(0),
    aten.crow_indices.default: _part(0),
    aten.ccol_indices.default: _part(0),
    aten.col_indices.default: _part(1),
    aten.row_indices.default: _part(1),
    aten._values.default: _part(-1),
    aten.values.default: _part(-1),
    aten._nnz.default: _count,
    aten.is_coalesced.default: _is_coalesced,
    aten._coalesced_.default: _set_coalesced,
    aten.detach.default: _same,
    aten.clone.default: _copied,
    aten._to_copy.default: _moved,
    aten.t.default: _turned,
    aten.transpose.int: _turned,
    aten.index_select.default: _selected,
    aten._coalesce.default: coalesced,
    aten._embedding_bag_backward.default: _bag_gradient,
    aten.sparse_mask.default: _masked,
    aten._to_dense.default: _dense,
    aten._to_sparse.default: _coordinates,
    aten._to_sparse.sparse_dim: _coordinates,
    aten._to_sparse_csr.default: _compressed,
}
"""Operator -> its kernel, if an argument is sparse or its result is."""
