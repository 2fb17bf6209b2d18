"""Attention: the gradients of queries that are summed in float32, and the rows of softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gpuledger.simulate.temporaries.spaces import Rule, Spaces, bytes_of, contiguous_copy

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.device import SimulatedDevice
    from gpuledger.simulate.traits import Traits

aten = torch.ops.aten
_OF_CUDNN = (9, 10)
"""Major compute capabilities on which torch prefers cuDNN's attention."""


def prefers_cudnn(gpu: Traits) -> bool:
    """Return whether torch prefers cuDNN's attention to the others.

    Source: check_prefer_cudnn_attention in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
    """
    return gpu.compute_capability[0] in _OF_CUDNN


def _cudnn_backward(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """On the GPUs that prefer another kernel, flash attention runs if there is no mask."""
    flash = _flash_sizes(args) if args[8] is None else _cudnn_sizes(args)
    cudnn = _cudnn_sizes(args)
    return Spaces("attention backward", after=device.sizing.many(lambda gpu: cudnn if prefers_cudnn(gpu) else flash))


def _flash_backward(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """On the GPUs that prefer cuDNN, it runs instead, unless this GPU is one and the program has switched it off."""
    flash, cudnn = _flash_sizes(args), _cudnn_sizes(args)
    everywhere = prefers_cudnn(device.sizing.own)
    return Spaces(
        "attention backward",
        after=device.sizing.many(lambda gpu: cudnn if prefers_cudnn(gpu) and not everywhere else flash),
    )


def _cudnn_sizes(args: Any) -> tuple[int, ...]:
    """Return cuDNN's one workspace: a float32 gradient of the queries, and one float32 per row.

    With grouped queries, it includes keys and values of every head. Exact on an H200 in bfloat16, for widths of 32, 64,
    80 and 128, and for grouped queries with a mask.
    """
    query, key = args[1], args[2]
    batch, heads, length, width = query.shape
    whole_bytes = batch * heads * key.shape[2] * width * key.element_size() if key.shape[1] != heads else 0
    return (batch * heads * length * 4 * (width + 1) + 256 + 2 * whole_bytes,)


def _flash_sizes(args: Any) -> tuple[int, ...]:
    """Return the sizes for FlashAttention, with whole keys and values if queries are grouped.

    It needs contiguous gradients and results, and widths in multiples of 32. Source:
    aten/src/ATen/native/transformers/cuda/attention_backward.cu and flash_attn/flash_api.cpp.
    """
    gradient, query, key, out = args[0], args[1], args[2], args[4]
    batch, heads, length, width = query.shape
    padded_rows = batch * heads * (-(-length // 128) * 128)
    whole_bytes = batch * heads * key.shape[2] * width * key.element_size()
    expanded = (whole_bytes, whole_bytes) if key.shape[1] != heads else (0, 0)
    copied = [sum(contiguous_copy(one.transpose(1, 2))) for one in (gradient, out)]
    return padded_rows * 4 * (-(-width // 32) * 32 + 1) + 256, *expanded, *copied


def _safe_softmax(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """The check for fully masked rows: one boolean per score, one per row, and a zero. Exact for T5's attention."""
    scores = args[0]
    rows = scores.numel() // scores.shape[args[1]] if scores.numel() else 0
    return Spaces("softmax", (), (scores.numel(), rows, scores.element_size()))


_TILE, _WIDE_TILE, _TILE_HEADER_BYTES, _MOST_SPLIT_HEADS = 64, 128, 16, 200


def _efficient_backward(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """One float32 per row, and the tiles of the query gradient in float32, each with a lock.

    Source: aten/src/ATen/native/transformers/cuda/attention_backward.cu and mem_eff_attention/kernel_backward.h. Equal
    to the byte for heads of width 32, 64, 80 and 128 in float32, and of 32, 64 and 128 in bfloat16.
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
    copied = () if gradient.transpose(1, 2).is_contiguous() else (bytes_of(gradient),)
    if half:
        return Spaces("efficient attention backward", before=copied, after=(rows_bytes, space_bytes))
    product_bytes = out.numel() * 4
    return Spaces(
        "efficient attention backward",
        before=copied,
        after=(product_bytes, rows_bytes, rows_bytes),
        later=(rows_bytes, space_bytes),
    )


def _softmax_backward(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """The gradient times the result. Source: aten/src/ATen/native/cuda/SoftMax.cu; exact for T5's attention."""
    return Spaces("softmax backward", (), (bytes_of(args[0]),))


RULES: dict[Any, Rule] = {
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_backward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._safe_softmax.default: _safe_softmax,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten._softmax_backward_data.default: _softmax_backward,
}
