"""The parts of a sparse tensor on the GPU: its indices, in one tensor (COO) or two (CSR and CSC), and its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from gpuledger.collect.adapter.program_objects import SIMULATED_PARTS

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.dispatch import SimulatedMode

aten = torch.ops.aten
Parts = tuple[torch.Tensor, ...]
"""Indices and values, which are last."""
Kernel = Callable[["SimulatedMode", Any, Any, Any], Any]
"""Gets the mode, an operator and its arguments; returns its fake result, or ``NotImplemented``."""
COMPRESSED = (torch.sparse_csr, torch.sparse_csc)
_CPU = torch.device("cpu")


def parts_of(sparse: Any) -> Parts | None:
    """Return the parts of a sparse tensor on the GPU; None of any other tensor."""
    return getattr(sparse, SIMULATED_PARTS, None)


def is_sparse(value: Any) -> bool:
    """Return whether a value is a sparse tensor."""
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


def has_sparse(args: Iterable[Any]) -> bool:
    """Return whether any argument is a sparse tensor, or a list with one."""
    return any(is_sparse(value) or (isinstance(value, (list, tuple)) and has_sparse(value)) for value in args)


def with_parts(sparse: Any, parts: Parts, *, coalesced: bool = False) -> Any:
    """Return a fake sparse tensor that has these parts from now on."""
    setattr(sparse, SIMULATED_PARTS, parts)  # read by the device and by what observes tensors
    sparse._gpuledger_coalesced = coalesced
    return sparse


def is_whole(sparse: Any) -> bool:
    """Return whether each index of a sparse tensor is there once."""
    return sparse.layout is not torch.sparse_coo or sparse._gpuledger_coalesced


def made(mode: SimulatedMode, like: torch.Tensor, parts: Parts, *, coalesced: bool = False, **how: Any) -> Any:
    """Return a new sparse tensor.

    Args:
        mode: Makes it.
        like: A tensor with its size and layout, unless ``how`` has a ``size`` or a ``layout``.
        parts: Its indices and values.
        coalesced: Whether each index is there once.
        how: Another ``size`` or ``layout``.
    """
    size, layout, dtype = how.get("size", like.shape), how.get("layout", like.layout), parts[-1].dtype
    with mode.fake_mode:
        if layout is torch.sparse_coo:
            dims = parts[0].shape[0], parts[1].dim() - 1
            empty = aten._sparse_coo_tensor_with_dims.default(*dims, size, dtype=dtype, layout=layout, device=_CPU)
        else:
            empty = torch.empty(size, dtype=dtype, layout=layout, device=_CPU)
    return with_parts(empty, parts, coalesced=coalesced)


def copied(mode: SimulatedMode, *tensors: torch.Tensor) -> Parts:
    """Return copies on the GPU, with memory of their own."""
    how = {"memory_format": torch.contiguous_format}
    return tuple(mode.run_on_card(aten.clone.default, (one,), how) for one in tensors)


def placed(mode: SimulatedMode, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor on the GPU: itself if it is there, otherwise a copy."""
    if mode.device.holds(tensor) and dtype in (None, tensor.dtype):
        with mode.fake_mode:
            return tensor.detach()
    return moved(mode, tensor, {} if dtype is None else {"dtype": dtype})


def moved(mode: SimulatedMode, tensor: torch.Tensor, how: Any) -> torch.Tensor:
    """Return a copy on the GPU. Torch makes no fake tensor of a view of a compressed tensor, so it gets no view."""
    if tensor._is_view() and is_sparse(tensor._base):
        alone = torch.empty(0, dtype=tensor.dtype)
        tensor = alone.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    copy: torch.Tensor = mode.run_on_card(aten._to_copy.default, (tensor,), how)
    return copy


def new(
    mode: SimulatedMode, func: Any, size: Any, like: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return a new tensor on the GPU."""
    tensor = mode.make(size, like, dtype)
    mode.account(func, tensor)
    return tensor
