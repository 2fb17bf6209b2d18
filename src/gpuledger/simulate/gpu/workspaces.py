"""Temporary memory of kernels: one rule per operator, with its source.

Without another source, a rule is from the allocator's history of an H200 with torch 2.11, CUDA 13.0 and cuDNN 9.19, in
November 2026. Exact rules say so; the others are upper bounds of the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gpuledger.simulate.convolutions.convolutions import CUDNN, forward_held
from gpuledger.simulate.convolutions.sums import sum_bytes
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.traits import Traits

aten = torch.ops.aten
MIB = 1 << 20
CUBLASLT_BYTES = MIB
"""cuBLASLt's workspace for a product with bias in one kernel; one per cuBLAS workspace. Exact on an H200."""


@dataclass(frozen=True)
class Spaces:
    """Temporary memory of an operator, in bytes.

    ``first`` is allocated and freed before the result is allocated. ``before`` is allocated before the result and freed
    at the end. ``after`` is allocated and freed after the result, and ``later`` after that. ``kept`` are
    workspaces that a library allocates once per key and never frees.
    """

    label: str
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    later: tuple[int, ...] = ()
    kept: tuple[tuple[object, int], ...] = ()


Rule = Callable[[Any, Any, SimulatedDevice], Spaces | None]


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements fill one memory range without gaps or overlaps."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


COPIES_TO_HOST = (aten.copy_.default, aten._to_copy.default)


def host_copy_bytes(source: torch.Tensor, target: torch.Tensor | None = None) -> tuple[int, ...]:
    """Return the bytes of a contiguous copy on the GPU, which a copy to the CPU needs if the layouts differ.

    Source: copy_requires_temporaries in aten/src/ATen/native/cuda/Copy.cu.

    Args:
        source: A tensor on the GPU.
        target: A tensor of the CPU; None for a new one, which has the layout of a dense source.
    """
    alike = target is None or (target.stride() == source.stride() and target.dtype == source.dtype)
    return () if source.is_contiguous() or (alike and is_dense(source)) else (_bytes(source),)


# -- matrix products ----------------------------------------------------------------------------------------------


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
    return tuple(_bytes(matrix) for matrix in matrices if matrix.numel() and _needs_copy(matrix))


def _workspace(device: SimulatedDevice) -> tuple[object, int]:
    return ("cublas", device.stream, device.in_backward), device.sizing.one(cublas_bytes)


def _product(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    return Spaces("cuBLAS workspace", after=_copies(*args[:2]), kept=(_workspace(device),))


def _product_added(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    return Spaces("cuBLAS workspace", after=_copies(*args[1:3]), kept=(_workspace(device),))


def _product_of_vectors(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    return Spaces("cuBLAS workspace", kept=(_workspace(device),))


def _product_with_bias(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """cuBLASLt, which adds the bias in the same kernel: 1 MiB in addition to cuBLAS's workspace, never freed. Exact."""
    plain = _product_added(args, kwargs, device)
    if args[0].dim() != 1:
        return plain
    key = ("cublaslt", device.stream, device.in_backward)
    return replace(plain, kept=(*plain.kept, (key, CUBLASLT_BYTES)))


# -- sums ---------------------------------------------------------------------------------------------------------


def _sum(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """A sum over leading dimensions, such as a bias gradient: thread blocks combine parts in global memory."""
    tensor, dims = args[0], args[1] if len(args) > 1 else None
    if not dims or not tensor.is_contiguous() or tensor.dim() < 2:
        return None
    reduced = {dim % tensor.dim() for dim in dims}
    if reduced != set(range(len(reduced))) or len(reduced) == tensor.dim():
        return None
    inputs = math.prod(tensor.shape[: len(reduced)])
    outputs = math.prod(tensor.shape[len(reduced) :])
    held = device.sizing.many(lambda gpu: sum_bytes(inputs, outputs, gpu.multiprocessors, along_inputs=False))
    return Spaces("sum over rows", (), held) if held else None


# -- attention, embeddings ----------------------------------------------------------------------------------------


def _flash_backward(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """A float32 gradient of the queries, and one float32 per row. Exact for 8 x 12 x 512 x 64 in bfloat16."""
    batch, heads, length, width = args[1].shape
    rows = batch * heads * (-(-length // 128) * 128)
    return Spaces("flash attention backward", (), (rows * 4 * (-(-width // 32) * 32 + 1) + 256,))


def _safe_softmax(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """The check for fully masked rows: one boolean per score, one per row, and a zero. Exact for T5's attention."""
    scores = args[0]
    rows = scores.numel() // scores.shape[args[1]] if scores.numel() else 0
    return Spaces("softmax", (), (scores.numel(), rows, scores.element_size()))


_TILE, _WIDE_TILE, _TILE_HEADER_BYTES, _MOST_SPLIT_HEADS = 64, 128, 16, 200


def _efficient_backward(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """One float32 per row, and the tiles of the query gradient in float32, each with a lock.

    Source: aten/src/ATen/native/transformers/cuda/attention_backward.cu and mem_eff_attention/kernel_backward.h. Equal
    to the byte for five shapes in float32 with heads of width 64. Half precision and wider heads were not measured.
    """
    gradient, query, key, out = args[0], args[1], args[2], args[5]
    batch, heads, length, width = query.shape
    half = query.element_size() == 2
    rows_bytes = batch * heads * length * 4
    tile = _WIDE_TILE if half and _TILE < width <= _WIDE_TILE else _TILE
    tiles = -(-length // tile) * -(-width // tile)
    floats = tiles * (_TILE_HEADER_BYTES // 4 + tile * tile)
    if half and width > _WIDE_TILE:
        splits = max(min(-(-key.shape[2] // tile), _MOST_SPLIT_HEADS // (batch * heads)), 1)
        floats += 2 * splits * (-(-key.shape[2] // tile) * tile) * (-(-width // tile) * tile)
    space_bytes = batch * heads * floats * 4
    copied = () if gradient.transpose(1, 2).is_contiguous() else (_bytes(gradient),)
    if half:
        return Spaces("efficient attention backward", copied, (rows_bytes, space_bytes))
    product_bytes = out.numel() * 4
    return Spaces(
        "efficient attention backward", copied, (product_bytes, rows_bytes, rows_bytes), (rows_bytes, space_bytes)
    )


_SMALL_EMBEDDING, _ROWS_A_PART, _FEW_ROWS = 3072, 10, 32
_SORT_TILE, _SORT_TILE_BYTES, _SORT_FIXED_BYTES, _SCAN_BYTES = 4608, 1024, 16_895, 1279


def _embedding_backward(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """Sorted indices, a float32 buffer for sums of at most ten rows, and the sums of each row.

    Source: aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu. Equal to the byte for 4,096 to 65,536 indices in
    seven trainings; the buffer of the sort was fitted to five of its sizes (keys and positions twice, 1 KiB per tile).
    Tables of 2 and 32 rows had positions where larger ones had floats. Up to 3,072 indices are not sorted.
    """
    gradient, indices, weights = args[0], args[1], args[2]
    count = indices.numel()
    if count <= _SMALL_EMBEDDING:
        return None
    index_bytes = count * indices.element_size()
    rows = min(count, weights)
    parts = count // _ROWS_A_PART + rows
    sort_bytes = 2 * index_bytes + _SORT_TILE_BYTES * -(-count // _SORT_TILE) + _SORT_FIXED_BYTES
    sums_bytes = parts * (8 if weights <= _FEW_ROWS else gradient.shape[-1] * 4)
    return Spaces(
        "embedding backward",
        before=(index_bytes, index_bytes),
        first=(index_bytes, sort_bytes),
        after=(index_bytes, 8, index_bytes, _SCAN_BYTES),
        later=(index_bytes, 8, rows * 8, rows * 8, 8, parts * 8, sums_bytes),
    )


def _softmax_backward(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """The gradient times the result. Source: aten/src/ATen/native/cuda/SoftMax.cu; exact for T5's attention."""
    return Spaces("softmax backward", (), (_bytes(args[0]),))


def _convolution(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    held = forward_held(args, device.sizing)
    device.note_convolution(held)
    return Spaces(CUDNN, held.before, held.beside[0])


RULES: dict[Any, Rule] = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.baddbmm.default: _product_added,
    aten.mv.default: _product_of_vectors,
    aten.dot.default: _product_of_vectors,
    aten.addmm.default: _product_with_bias,
    aten.sum.dim_IntList: _sum,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._safe_softmax.default: _safe_softmax,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten._softmax_backward_data.default: _softmax_backward,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.convolution.default: _convolution,
}
"""Operator -> its rule."""


def workspaces_of(func: Any, args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """Return the temporary memory of ``func``; None if no rule applies."""
    rule = RULES.get(func)
    return None if rule is None else rule(args, kwargs, device)
