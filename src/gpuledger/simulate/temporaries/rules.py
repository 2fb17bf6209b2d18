"""All rules: operator -> the temporary memory of a call.

Without another source, a rule is from the allocator's history or counters of an H200 with torch 2.11, CUDA 13.0 and
cuDNN 9.19, in November 2026. Exact rules say so; the others are upper bounds of the measurements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gpuledger.simulate.convolutions.convolutions import CUDNN, forward_held
from gpuledger.simulate.temporaries import attention, indices, mathematics, pictures, products, reductions
from gpuledger.simulate.temporaries.spaces import Rule, Spaces, bytes_of, is_dense

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.device import SimulatedDevice

aten = torch.ops.aten
COPIES_TO_HOST = (aten.copy_.default, aten._to_copy.default)


def host_copy_bytes(source: torch.Tensor, target: torch.Tensor | None = None) -> tuple[int, ...]:
    """Return the bytes of a contiguous copy on the GPU, which a copy to the CPU needs if the layouts differ.

    Source: copy_requires_temporaries in aten/src/ATen/native/cuda/Copy.cu.

    Args:
        source: A tensor on the GPU.
        target: A tensor of the CPU; None for a new one, which has the layout of a dense source.
    """
    if source.layout is not torch.strided:
        return ()
    alike = target is None or (target.stride() == source.stride() and target.dtype == source.dtype)
    return () if source.is_contiguous() or (alike and is_dense(source)) else (bytes_of(source),)


def _ctc_backward(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    """The probabilities from the end. Source: aten/src/ATen/native/cuda/LossCTC.cu."""
    return Spaces("ctc_loss", before=(bytes_of(args[6]),))


def _convolution(args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces:
    held = forward_held(args, device.sizing)
    device.note_convolution(held)
    return Spaces(CUDNN, held.before, held.beside[0])


RULES: dict[Any, Rule] = {
    **products.RULES,
    **reductions.RULES,
    **attention.RULES,
    **indices.RULES,
    **pictures.RULES,
    **mathematics.RULES,
    aten._ctc_loss_backward.default: _ctc_backward,
    aten._ctc_loss_backward.Tensor: _ctc_backward,
    aten.convolution.default: _convolution,
}
"""Operator -> its rule."""


def workspaces_of(func: Any, args: Any, kwargs: Any, device: SimulatedDevice) -> Spaces | None:
    """Return the temporary memory of ``func``; None if no rule applies."""
    rule = RULES.get(func)
    return None if rule is None else rule(args, kwargs, device)
