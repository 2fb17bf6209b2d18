"""Matrix products: copies that cuBLAS needs, and its workspaces, which are never freed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from gpuledger.simulate.temporaries.spaces import Rule, Spaces, bytes_of, is_dense
from gpuledger.simulate.traits import Traits

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.device import SimulatedDevice

aten = torch.ops.aten
MIB = 1 << 20
CUBLASLT_BYTES = MIB
"""cuBLASLt's workspace for a product with bias in one kernel; one per cuBLAS workspace. Exact on an H200."""


def cublas_bytes(traits: Traits) -> int:
    """Return the workspace of one cuBLAS handle and stream. It is never freed.

    Source: torch's rule (aten/src/ATen/cuda/CublasHandlePool.cpp): 32 MiB from compute capability 9 on, else
    8,519,680 bytes. Measured: one for forward and one for backward, which runs in another thread with its
    own handle.
    """
    return 32 * MIB if traits.compute_capability >= (9, 0) else 8_519_680


def _needs_copy(matrix: torch.Tensor) -> bool:
    """Return whether cuBLAS needs a contiguous copy of a matrix, or of a batch of them, as of an expanded gradient.

    Source: prepare_matrix_for_cublas and prepare_batch_matrix_for_cublas in aten/src/ATen/native/cuda/Blas.cpp.
    """
    (rows, columns), (row, column) = matrix.shape[-2:], matrix.stride()[-2:]
    if (row == 1 and column >= max(1, rows)) or (column == 1 and row >= max(1, columns)):
        return False
    if matrix.dim() == 2:
        return not is_dense(matrix)
    return not (matrix.is_contiguous() and row and column)


def _copies(*matrices: torch.Tensor) -> tuple[int, ...]:
    return tuple(bytes_of(matrix) for matrix in matrices if matrix.numel() and _needs_copy(matrix))


def cublas_workspace(device: SimulatedDevice) -> tuple[object, int]:
    """Return the key and the bytes of the workspace of the current stream and thread."""
    return ("cublas", device.stream, device.handle), device.sizing.one(cublas_bytes)


def _product(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    if any(one.layout is not torch.strided for one in args[:2]):
        return None  # cuSPARSE has no workspace that it keeps
    return Spaces("cuBLAS workspace", after=_copies(*args[:2]), kept=(cublas_workspace(device),))


def _product_added(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    return Spaces("cuBLAS workspace", after=_copies(*args[1:3]), kept=(cublas_workspace(device),))


def keeps_workspace(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """Only the workspace."""
    return Spaces("cuBLAS workspace", kept=(cublas_workspace(device),))


def _product_with_bias(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """cuBLASLt, which adds the bias in the same kernel: 1 MiB in addition to cuBLAS's workspace, never freed. Exact."""
    if any(one.layout is not torch.strided for one in args[1:3]):
        return None  # as above
    plain = _product_added(args, kwargs, device)
    if args[0].dim() != 1:
        return plain
    key = ("cublaslt", device.stream, device.handle)
    return replace(plain, kept=(*plain.kept, (key, CUBLASLT_BYTES)))


RULES: dict[Any, Rule] = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.baddbmm.default: _product_added,
    aten.mv.default: keeps_workspace,
    aten.dot.default: keeps_workspace,
    aten.vdot.default: keeps_workspace,
    aten.affine_grid_generator.default: keeps_workspace,
    aten.addmm.default: _product_with_bias,
    aten._addmm_activation.default: _product_with_bias,
}
