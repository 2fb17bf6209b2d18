"""What kernels hold beside their results while they work: one rule each, with the measurement it comes from.

All seen in the allocator's history of an H200 with torch 2.11, CUDA 13.0 and cuDNN 9.19, in November 2026, where a
rule says no other source. A rule that is exact says so; the others are upper bounds of what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gpuledger.virtual.convolutions import forward_bytes
from gpuledger.virtual.device import VirtualDevice

aten = torch.ops.aten
MIB = 1 << 20
CUBLASLT_BYTES = MIB
"""cuBLASLt's workspace where it adds a bias in the same kernel; one for each of cuBLAS's. Exact on an H200."""


@dataclass(frozen=True)
class Spaces:
    """Bytes an operator takes before its result is made and holds until it ends, and after its result is made.

    ``kept`` are workspaces that a library takes once, under a key, and never gives back.
    """

    label: str
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    kept: tuple[tuple[object, int], ...] = ()


Rule = Callable[[Any, Any, VirtualDevice], Spaces | None]


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


# -- matrix products ----------------------------------------------------------------------------------------------


def cublas_bytes(device: VirtualDevice) -> int:
    """Return the workspace of one cuBLAS handle and stream, which stays.

    Source: torch's rule (aten/src/ATen/cuda/CublasHandlePool.cpp): 32 MiB from compute capability 9 on, else
    8,519,680 bytes. Seen: one for forward and one for backward, whose thread has a handle of its own.
    """
    return 32 * MIB if device.card.compute_capability >= (9, 0) else 8_519_680


def _product(args: Any, kwargs: Any, device: VirtualDevice) -> Spaces:
    key = ("cublas", device.stream, device.in_backward)
    return Spaces("cuBLAS workspace", kept=((key, cublas_bytes(device)),))


def _product_with_bias(args: Any, kwargs: Any, device: VirtualDevice) -> Spaces:
    """cuBLASLt, which adds the bias in the same kernel, has a workspace of 1 MiB beside cuBLAS's; it stays. Exact."""
    plain = _product(args, kwargs, device)
    if args[0].dim() != 1:
        return plain
    key = ("cublaslt", device.stream, device.in_backward)
    return Spaces(plain.label, kept=(*plain.kept, (key, CUBLASLT_BYTES)))


# -- sums ---------------------------------------------------------------------------------------------------------

_THREADS, _WARP, _THREADS_PER_PROCESSOR = 512, 32, 2048
_LEAST_VALUES, _MOST_VALUES = 16, 256


def _sum(args: Any, kwargs: Any, device: VirtualDevice) -> Spaces | None:
    """A sum over leading dimensions (a bias's gradient) is split among blocks that meet in global memory.

    Source: aten/src/ATen/native/cuda/Reduce.cuh (setReduceConfig, global_memory_size); equal to the byte for four
    shapes of GPT-2 and of an LSTM's head.
    """
    tensor, dims = args[0], args[1] if len(args) > 1 else None
    if not dims or not tensor.is_contiguous() or tensor.dim() < 2:
        return None
    reduced = {dim % tensor.dim() for dim in dims}
    if reduced != set(range(len(reduced))) or len(reduced) == tensor.dim():
        return None
    inputs = math.prod(tensor.shape[: len(reduced)])
    outputs = math.prod(tensor.shape[len(reduced) :])
    if not inputs or not outputs:
        return None
    vector = next(size for size in (4, 2, 1) if outputs % size == 0)
    threads = _THREADS // vector
    width = min(_last_power(max(outputs // vector, 1)), _WARP)
    height = min(_last_power(inputs), threads // width)
    values = -(-inputs // height)
    grid = -(-(outputs // vector) // width)
    target = device.card.multiprocessors * (_THREADS_PER_PROCESSOR // (width * height))
    if inputs < height * 16 or values < _MOST_VALUES or grid > target:
        return None
    blocks = max(min(-(-target // grid), -(-values // _LEAST_VALUES)), -(-values // _MOST_VALUES))
    if blocks <= 1:
        return None
    return Spaces("sum over rows", (), (4 * outputs * blocks * width * vector, 4 * grid))


def _last_power(number: int) -> int:
    return 1 << (number.bit_length() - 1)


# -- attention, embeddings ----------------------------------------------------------------------------------------


def _flash_backward(args: Any, kwargs: Any, device: VirtualDevice) -> Spaces:
    """A float gradient of the queries and one float a row. Exact for 8 x 12 x 512 x 64 in bfloat16."""
    batch, heads, length, width = args[1].shape
    rows = batch * heads * (-(-length // 128) * 128)
    return Spaces("flash attention backward", (), (rows * 4 * (-(-width // 32) * 32 + 1) + 256,))


def _efficient_backward(args: Any, kwargs: Any, device: VirtualDevice) -> Spaces | None:
    """Float accumulators of key and value gradients for halves, and one float a row."""
    query, key = args[1], args[2]
    batch, heads, length, _ = query.shape
    rows = batch * heads * length * 4
    if query.element_size() == 4:
        return Spaces("efficient attention backward", (), (rows,))
    return Spaces("efficient attention backward", (), (rows, 2 * key.numel() * 4))


_ROWS_A_THREAD = 10
_SMALL_EMBEDDING = 3072


def _embedding_backward(args: Any, kwargs: Any, device: VirtualDevice) -> Spaces | None:
    """Sorts the indices, then adds segments of rows in a buffer of floats.

    Source: aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu; equal to the byte for 4,096 indices of width 768,
    where the segments' buffer is (4,096 // 10 + 4,096) rows of floats. Up to 3,072 indices need no sorting.
    """
    gradient, indices, weights = args[0], args[1], args[2]
    count = indices.numel()
    if count <= _SMALL_EMBEDDING:
        return None
    index_bytes = count * indices.element_size()
    segments = min(count, weights)
    width = -(-gradient.shape[-1] // 32) * 32
    rows = count // _ROWS_A_THREAD + segments
    return Spaces(
        "embedding backward",
        (index_bytes, index_bytes, index_bytes, int(2.55 * index_bytes) if count > 4096 else 83_455),
        (index_bytes, index_bytes, index_bytes, rows * 8, rows * width * 4),
    )


def _convolution(args: Any, kwargs: Any, device: VirtualDevice) -> Spaces:
    return Spaces("convolution", (), (forward_bytes(args),))


RULES: dict[Any, Rule] = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.baddbmm.default: _product,
    aten.mv.default: _product,
    aten.dot.default: _product,
    aten.addmm.default: _product_with_bias,
    aten.sum.dim_IntList: _sum,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.convolution.default: _convolution,
}
"""Operator -> what it takes beside its result."""


def workspaces_of(func: Any, args: Any, kwargs: Any, device: VirtualDevice) -> Spaces | None:
    """Return what ``func`` takes beside its result; None where no rule knows of anything."""
    rule = RULES.get(func)
    return None if rule is None else rule(args, kwargs, device)
