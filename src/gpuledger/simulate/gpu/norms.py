"""CUDA's fused kernel of RMSNorm. On the CPU, torch runs several operators and keeps more for backward."""

from __future__ import annotations

from typing import Any

import torch

from gpuledger.simulate.gpu.functions import VirtualFunctions
from gpuledger.simulate.gpu.patches import Patches


def patch_norms(patches: Patches, functions: VirtualFunctions) -> None:
    """Use the fused kernel where CUDA does: if data and weight have the same dtype."""
    plain = torch.rms_norm
    if not hasattr(torch.ops.aten, "_fused_rms_norm"):
        return  # torch before 2.9 has no fused kernel on CUDA either

    def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:  # noqa: A002
        is_known = functions.on_card(input) and (weight is None or functions.on_card(weight))
        (data,) = _float32(input) if is_known else (input,)
        if not is_known or (weight is not None and weight.dtype != data.dtype):
            return plain(input, normalized_shape, weight, eps)
        return _FusedNorm.apply(data, weight, len(normalized_shape))  # type: ignore[no-untyped-call]

    patches.put(torch, "rms_norm", rms_norm)


def _float32(*tensors: Any) -> tuple[Any, ...]:
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
