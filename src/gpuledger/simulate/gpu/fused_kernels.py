"""CUDA's fused kernels: attention, chosen by dtype, shapes and mask, FlexAttention, and RMSNorm.

On the CPU, torch runs several operators instead and keeps more for backward.
"""

from __future__ import annotations

import inspect
import math
from importlib import import_module
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import flex_attention

from gpuledger.simulate.gpu.autocast import is_cast_by_cuda, without_autocast
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.functions import SimulatedFunctions, cast_for_autocast
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.temporaries.attention import prefers_cudnn
from gpuledger.simulate.traits import Traits, listed_traits

aten = torch.ops.aten
flex_operators: Any = import_module("torch._higher_order_ops.flex_attention")
"""By its name, because the package has an operator of the same name as this module."""
HALVES = (torch.float16, torch.bfloat16)
_WIDEST_FLASH, _MASK_ALIGNMENT = 256, 8
_WIDEST_CUDNN = 128
_OF_FLEX = ("FlexAttentionHOP", "math_attention", "sdpa_dense_backward")
_NO_WARNING = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
"""Names that FlexAttention has in torch 2.11 to 2.13."""
CUDNN, FLASH, EFFICIENT, PLAIN = "cuDNN", "flash", "efficient", "plain"
"""Kernels of attention."""


def patch_attention(patches: Patches, functions: SimulatedFunctions) -> None:
    """Choose attention kernels in CUDA's order: cuDNN on some GPUs, flash, memory-efficient, plain.

    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp. Observed on an H200: T5's mask, which
    is not contiguous in its last dimension, uses the plain kernel.
    """
    plain = F.scaled_dot_product_attention

    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if not functions.on_card(query):
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        query, key, value = cast_for_autocast(query, key, value)
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            attn_mask = cast_for_autocast(attn_mask)[0]
        with without_autocast():
            kernel = _choose(functions.device, query, key, value, attn_mask, is_causal)
            if kernel == CUDNN:
                return _cudnn(query, key, value, attn_mask, dropout_p, is_causal, scale)
            if kernel == FLASH:
                return _flash(query, key, value, dropout_p, is_causal, scale)
            if kernel == EFFICIENT:
                return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
            return plain_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    patches.put(F, "scaled_dot_product_attention", attention)
    patches.put(torch._C._nn, "scaled_dot_product_attention", attention)


def _choose(device: SimulatedDevice, query: Any, key: Any, value: Any, mask: Any, causal: bool) -> str:
    """Return the kernel that CUDA chooses, and record the GPUs for which it chooses one with other memory.

    Without a mask, cuDNN's attention keeps the same tensors for backward as flash attention, and with one as
    memory-efficient attention.
    """
    on = torch.backends.cuda
    flash = (on.flash_sdp_enabled() or on.cudnn_sdp_enabled()) and _takes_flash(query, key, value, mask, causal)
    efficient = on.mem_efficient_sdp_enabled() and _takes_efficient(query, key, value, mask)
    cudnn = on.cudnn_sdp_enabled() and _takes_cudnn(query, key, value, mask, causal)

    def chosen(gpu: Traits) -> str:
        recent = gpu.compute_capability >= (8, 0)
        if cudnn and prefers_cudnn(gpu):
            return CUDNN
        if flash and recent:
            return FLASH
        return EFFICIENT if efficient and (recent or query.dtype != torch.bfloat16) else PLAIN

    alike = {CUDNN: FLASH if flash else EFFICIENT if efficient else CUDNN}
    own = chosen(device.sizing.own)
    others = {gpu: chosen(gpu) for gpu in listed_traits()}
    device.elsewhere.approximate.update(
        gpu for gpu, other in others.items() if alike.get(other, other) != alike.get(own, own)
    )
    return own


def _has_dense_rows(*tensors: Any) -> bool:
    return all(tensor.stride(-1) == 1 for tensor in tensors if tensor is not None)


def _takes_flash(query: Any, key: Any, value: Any, mask: Any, causal: bool) -> bool:
    width = query.shape[-1]
    return bool(
        query.dim() == 4
        and query.dtype in HALVES
        and mask is None
        and width == key.shape[-1] == value.shape[-1]
        and width <= _WIDEST_FLASH
        and not (causal and query.shape[-2] != key.shape[-2])
        and query.shape[0] == key.shape[0] == value.shape[0]
        and _has_dense_rows(query, key, value)
    )


def _takes_cudnn(query: Any, key: Any, value: Any, mask: Any, causal: bool) -> bool:
    """Return whether cuDNN's attention runs, also with a mask and grouped queries. Measured on an H200, torch 2.11."""
    width = query.shape[-1]
    return bool(
        query.dim() == 4
        and not _is_strict()
        and key.shape[2] != 1
        and query.dtype in HALVES
        and width == key.shape[-1] == value.shape[-1]
        and width % 8 == 0
        and width <= _WIDEST_CUDNN
        and query.shape[1] % key.shape[1] == 0
        and not (causal and mask is not None)
        and not (mask is not None and mask.requires_grad)
        and _has_dense_rows(query, key, value, mask)
    )


def _is_strict() -> bool:
    """Return whether the program refuses kernels that are not deterministic."""
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


def _takes_efficient(query: Any, key: Any, value: Any, mask: Any) -> bool:
    alignment = 16 // query.element_size()
    return bool(
        query.dim() == 4
        and query.dtype in (*HALVES, torch.float32)
        and query.shape[:2] == key.shape[:2] == value.shape[:2]
        and query.shape[-1] == key.shape[-1]
        and query.shape[-1] % alignment == value.shape[-1] % alignment == 0
        and _has_dense_rows(query, key, value, mask)
    )


def _cudnn(query: Any, key: Any, value: Any, mask: Any, dropout_p: float, causal: bool, scale: float | None) -> Any:
    """Return cuDNN's attention. A boolean mask is converted, and kept in the queries' dtype for backward."""
    if mask is not None:
        mask = _additive(mask, query.dtype)
    trained = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    return aten._scaled_dot_product_cudnn_attention(
        query, key, value, mask, trained, dropout_p, causal, False, scale=scale
    )[0]


def _flash(query: Any, key: Any, value: Any, dropout_p: float, is_causal: bool, scale: float | None) -> Any:
    width = query.shape[-1]
    if width % 8:
        query, key, value = (F.pad(t, (0, 8 - width % 8)) for t in (query, key, value))
        scale = scale or width**-0.5
    out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    return out[..., :width] if width % 8 else out


def _efficient(query: Any, key: Any, value: Any, mask: Any, dropout_p: float, causal: bool, scale: float | None) -> Any:
    if mask is not None:
        mask = _additive(mask, query.dtype).to(query.dtype)
        rest = mask.shape[-1] % _MASK_ALIGNMENT
        if rest:
            mask = F.pad(mask, (0, _MASK_ALIGNMENT - rest))[..., : mask.shape[-1]]
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    trained = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, trained, dropout_p, causal, scale=scale
    )[0]


def _additive(mask: Any, dtype: torch.dtype) -> Any:
    """Return a boolean mask as a tensor to add to the scores."""
    if mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.full((), -math.inf, dtype=dtype, device=mask.device))


def plain_attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout_p: float,
    causal: bool,
    scale: float | None,
    gqa: bool,
) -> Any:
    """Return attention with its scores in memory; half precision is converted to float32.

    Source: ``_scaled_dot_product_attention_math`` in aten/src/ATen/native/transformers/attention.cpp. Same blocks as
    T5 allocated on an H200.
    """
    dtype = query.dtype
    if dtype in HALVES:
        query, key, value = query.float(), key.float(), value.float()
    factor = math.sqrt(abs(scale) if scale else 1 / math.sqrt(query.shape[-1]))
    converted, query = query, query * factor  # both are there until the end
    if causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if gqa and query.shape[-3] != key.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = torch.matmul(query, key.transpose(-2, -1) * factor)
    if mask is not None:
        scores = scores.add_(_additive(mask, query.dtype))
    weights = torch._safe_softmax(scores, -1)
    del scores
    if dropout_p > 0.0:
        weights = aten.native_dropout(weights, dropout_p, True)[0]
    made = torch.matmul(weights, value).to(dtype)
    del converted
    return made


def patch_flex_attention(patches: Patches, functions: SimulatedFunctions) -> None:
    """Use FlexAttention's fused kernel in programs with ``torch.compile``, and scores in memory in others.

    If this torch has other private functions, FlexAttention is not simulated, and a program that uses it is refused.
    """
    if not all(hasattr(flex_operators, name) for name in _OF_FLEX) or not hasattr(flex_attention, _NO_WARNING):
        return
    plain = flex_operators.FlexAttentionHOP.__call__

    def call(operator: Any, query: Any, key: Any, value: Any, *how: Any) -> Any:
        if not functions.on_card(query):
            return plain(operator, query, key, value, *how)
        query, key, value = cast_for_autocast(query, key, value)
        with without_autocast():  # of ``how``: the function of scores, the mask, the scale, options
            kind = _FusedFlex if functions.device.uncompiled else _DenseFlex
            return kind.apply(how[:4], query, key, value, *_learned(how[0]))  # type: ignore[no-untyped-call]

    patches.put(flex_operators.FlexAttentionHOP, "__call__", call)
    patches.put(flex_attention, _NO_WARNING, True)


def _learned(score_mod: Any) -> list[torch.Tensor]:
    """Return the tensors with gradients that a function of scores refers to, such as a bias."""
    if not inspect.isfunction(score_mod):
        return []
    outer = inspect.getclosurevars(score_mod)
    found = (*outer.nonlocals.values(), *outer.globals.values())
    return [value for value in found if isinstance(value, torch.Tensor) and value.requires_grad]


class _FusedFlex(torch.autograd.Function):
    """Keeps one float32 per row for backward, which adds another.

    Source: torch/_inductor/kernel/flex/flex_attention.py of torch 2.13.
    """

    @staticmethod
    def forward(ctx: Any, how: Any, query: Any, key: Any, value: Any, *learned: Any) -> Any:
        same = query.shape[-1] == value.shape[-1]
        made = torch.empty_like(query) if same else query.new_empty((*query.shape[:-1], value.shape[-1]))
        rows = torch.empty(query.shape[:-1], dtype=torch.float32, device="cuda")
        largest = torch.empty(
            query.shape[:-1] if how[3].get("OUTPUT_MAX") else (0,), dtype=torch.float32, device="cuda"
        )
        ctx.save_for_backward(query, key, value, made, rows, *learned)
        ctx.mark_non_differentiable(largest)
        return made, rows, largest

    @staticmethod
    def backward(ctx: Any, gradient: Any, of_rows: Any, _of_largest: Any) -> Any:
        query, key, value, _made, rows, *learned = ctx.saved_tensors
        delta = torch.empty_like(rows)
        made = [torch.empty_like(tensor) for tensor in (query, key, value)]
        del delta
        return None, *made, *map(torch.empty_like, learned)


class _DenseFlex(torch.autograd.Function):
    """Keeps the same, and has the scores in memory while it runs, as torch's own operators."""

    @staticmethod
    def forward(ctx: Any, how: Any, query: Any, key: Any, value: Any, *learned: Any) -> Any:
        score_mod, mask, scale, options = how
        made, rows, largest = flex_operators.math_attention(query, key, value, score_mod, mask, scale, options)
        ctx.save_for_backward(query, key, value, made, rows, *learned)
        ctx.how = how
        ctx.mark_non_differentiable(largest)
        return made, rows, largest

    @staticmethod
    def backward(ctx: Any, gradient: Any, of_rows: Any, _of_largest: Any) -> Any:
        query, key, value, made, rows, *learned = ctx.saved_tensors
        score_mod, mask, scale, options = ctx.how

        def joint(_score: Any, _b: Any, _h: Any, _m: Any, _n: Any, of_score: Any) -> Any:
            return [of_score.clone(), None, None, None, None]

        found = flex_operators.sdpa_dense_backward(
            query, key, value, made, rows, gradient, of_rows, score_mod, joint, mask, scale, options, (), ()
        )
        return None, *found[:3], *map(torch.empty_like, learned)


def patch_norms(patches: Patches, functions: SimulatedFunctions) -> None:
    """Use the fused kernel of RMSNorm if data and weight have the same dtype, and contiguous data in GroupNorm."""
    plain_group = torch.group_norm

    def group_norm(input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        # Source: aten/src/ATen/native/group_norm.cpp. The copy is what backward keeps; the CPU keeps channels_last.
        if not functions.on_card(input):
            return plain_group(input, *args, **kwargs)
        (data,) = _for_autocast(input)  # alive until the result is there
        return plain_group(data.contiguous(), *args, **kwargs)

    patches.put(torch, "group_norm", group_norm)
    plain = torch.rms_norm
    if not hasattr(torch.ops.aten, "_fused_rms_norm"):
        return  # torch before 2.9 has no fused kernel on CUDA either
    is_cast = is_cast_by_cuda("rms_norm")

    def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:  # noqa: A002
        is_known = functions.on_card(input) and (weight is None or functions.on_card(weight))
        (data,) = _for_autocast(input) if is_known and is_cast else (input,)
        if not is_known or (weight is not None and weight.dtype != data.dtype):
            return plain(input, normalized_shape, weight, eps)
        return _FusedNorm.apply(data, weight, len(normalized_shape))  # type: ignore[no-untyped-call]

    patches.put(torch, "rms_norm", rms_norm)


def _for_autocast(*tensors: Any) -> tuple[Any, ...]:
    """Return tensors as autocast passes them to RMSNorm."""
    if not torch.is_autocast_enabled("cuda"):
        return tensors
    return tuple(tensor.float() for tensor in tensors)


class _FusedNorm(torch.autograd.Function):
    """Keeps the data and one number per row for backward."""

    @staticmethod
    def forward(ctx: Any, data: Any, weight: Any, dimensions: int) -> Any:
        rows = (*data.shape[: data.dim() - dimensions], *([1] * dimensions))
        made = torch.empty_like(data, memory_format=torch.contiguous_format)
        kept = torch.empty(rows, dtype=torch.float32 if data.dtype != torch.float64 else data.dtype, device="cuda")
        ctx.save_for_backward(data, weight, kept)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        data, weight, _ = ctx.saved_tensors
        of_data = torch.empty_like(data) if ctx.needs_input_grad[0] else None
        of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        return of_data, of_weight, None
