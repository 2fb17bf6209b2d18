"""Fourier transforms, distances, and linear algebra with cuSOLVER."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from gpuledger.simulate.convolutions.sums import sum_bytes
from gpuledger.simulate.temporaries.products import cublas_workspace, keeps_workspace
from gpuledger.simulate.temporaries.spaces import Rule, Spaces, argument, bytes_of

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.device import SimulatedDevice

aten = torch.ops.aten


def _roll(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """The result of each dimension before the last. Source: roll_common in native/TensorTransformations.h."""
    dims = len(argument(args, kwargs, 2, "dims") or ())
    return Spaces("roll", before=(bytes_of(args[0]),) * (dims - 1)) if dims > 1 else None


def _to_real(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """A copy of the data, which cuFFT overwrites. Source: aten/src/ATen/native/cuda/SpectralOps.cpp."""
    return Spaces("cuFFT", before=(bytes_of(args[0]),))


def _distances(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """Points with their lengths: the product of these has the distances. Source: native/Distance.cpp. Exact."""
    wider = tuple(bytes_of(one) // one.shape[-1] * (one.shape[-1] + 2) for one in args[:2])
    return Spaces("cdist", before=wider, kept=(cublas_workspace(device),))


def _distances_backward(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """Differences of all pairs of points, and their sums. Source: aten/src/ATen/native/cuda/DistanceKernel.cu."""
    first, second = args[1], args[2]
    outputs = first.numel()
    pairs_bytes = bytes_of(first) * second.shape[-2]
    held = device.sizing.many(lambda gpu: sum_bytes(second.shape[-2], outputs, gpu.multiprocessors, along_inputs=False))
    return Spaces("cdist", after=(pairs_bytes, *held))


def _copies_of_matrices(count: int) -> Rule:
    def rule(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
        return Spaces("cuSOLVER", after=(bytes_of(args[0]),) * count)

    return rule


def _solved_with_factors(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """Backward of determinants has no other product, and cuBLAS keeps a workspace for it."""
    kept = (cublas_workspace(device),) if device.in_backward else ()
    return Spaces("cuSOLVER", after=(bytes_of(args[0]),), kept=kept)


ORTHOGONAL_BYTES = 3 << 20
"""A workspace of cuSOLVER for a QR decomposition of a single matrix."""
_EXPONENTIAL_COPIES = 12


def _orthogonal(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    size_bytes = bytes_of(args[0])
    return Spaces("cuSOLVER", after=(size_bytes, ORTHOGONAL_BYTES) if args[0].dim() == 2 else (size_bytes // 4,))


def _exponential(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """Powers of the matrix, and their sums."""
    kept = (cublas_workspace(device),) if device.in_backward else ()
    return Spaces("matrix_exp", before=(bytes_of(args[0]),) * _EXPONENTIAL_COPIES, kept=kept)


_SMALL_MATRIX, _MIDDLE_MATRIX = 32, 512
_EACH_SMALL_BYTES, _EACH_COLUMN_BYTES = 258_000, 3553


def _eigenvalues(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """One to three more matrices; for batches of small ones, a workspace fitted to 256 of 8 x 8 and 64 of 32 x 32."""
    tensor = args[0]
    matrices, columns = math.prod(tensor.shape[:-2]), tensor.shape[-1]
    if matrices == 1:
        return Spaces("cuSOLVER", after=(bytes_of(tensor),) * (1 if columns <= _MIDDLE_MATRIX else 3))
    small_bytes = matrices * (_EACH_SMALL_BYTES + _EACH_COLUMN_BYTES * columns)
    return Spaces("cuSOLVER", after=(small_bytes if columns <= _SMALL_MATRIX else 0,))


_DIRECT_FACTOR = 127


def _transformed(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """A workspace if a length has a prime factor above 127, for which cuFFT uses Bluestein's algorithm."""
    tensor, dims = args[0], args[1]
    if all(_largest_factor(tensor.shape[dim]) <= _DIRECT_FACTOR for dim in dims):
        return None
    return Spaces("cuFFT", after=(2 * bytes_of(tensor),))


def _largest_factor(number: int) -> int:
    factor, largest = 2, 1
    while factor * factor <= number:
        while number % factor == 0:
            largest, number = factor, number // factor
        factor += 1
    return max(largest, number)


RULES: dict[Any, Rule] = {
    aten.roll.default: _roll,
    aten._fft_r2c.default: _transformed,
    aten._fft_c2r.default: _to_real,
    aten._euclidean_dist.default: _distances,
    aten._cdist_backward.default: _distances_backward,
    aten.linalg_lu_solve.default: _solved_with_factors,
    aten.linalg_inv_ex.default: _copies_of_matrices(2),
    aten._linalg_solve_ex.default: _copies_of_matrices(1),
    aten.linalg_lu.default: _copies_of_matrices(1),
    aten.linalg_qr.default: _orthogonal,
    aten._linalg_svd.default: _copies_of_matrices(3),
    aten.linalg_matrix_exp.default: _exponential,
    aten._trilinear.default: keeps_workspace,
    aten.cholesky_solve.default: _copies_of_matrices(1),
    aten.cholesky_inverse.default: _copies_of_matrices(1),
    aten._linalg_eigh.default: _eigenvalues,
}
