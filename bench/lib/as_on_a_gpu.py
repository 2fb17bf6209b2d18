"""Makes the CPU run the operators that a GPU runs, where the CPU keeps other tensors for the backward pass.

So the tally of a program on the CPU has the tensors that its estimate has. Recurrent layers are not changed: cuDNN's
cannot be run here.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn import functional as F

from gpuledger.simulate.gpu.fused_kernels import plain_attention


def choose_plain_attention() -> None:
    """Switch the fused attention off, which CPU and GPU have for different inputs."""
    for name in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(False)


def choose_as_on_a_gpu() -> None:
    """Use dropout with a boolean mask, also in attention, foreach optimizers, and a GPU's RMSNorm and GRU cell."""
    plain = F.dropout

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002
        if not training or p in (0.0, 1.0) or inplace:
            return plain(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    F.dropout = dropout
    torch.dropout = dropout
    F.scaled_dot_product_attention = _attention
    torch.rms_norm = _rms_norm
    torch._VF.gru_cell = _gru_cell
    _choose_foreach()


def _choose_foreach() -> None:
    def foreach(_params: Any, differentiable: bool, use_fused: bool = False) -> tuple[bool, bool]:
        return (False, False) if differentiable else (use_fused, not use_fused)

    for name, module in list(sys.modules.items()):
        if name.startswith(("torch.optim", "torch.nn.utils", "torch.utils._foreach_utils")):
            for known, chosen in (
                ("_default_to_fused_or_foreach", foreach),
                ("_has_foreach_support", lambda _tensors, device: True),
                ("_device_has_foreach_support", lambda _device: True),
            ):
                if hasattr(module, known):
                    setattr(module, known, chosen)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    return plain_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:  # noqa: A002
    if weight is not None and weight.dtype != input.dtype:
        raise NotImplementedError("RMSNorm of data and weight with different dtypes is not fused")
    return _Norm.apply(input, weight, len(normalized_shape), eps or torch.finfo(input.dtype).eps)


class _Norm(torch.autograd.Function):
    """Keeps the data and one number a row, as the fused kernel."""

    @staticmethod
    def forward(ctx: Any, data: Any, weight: Any, dimensions: int, eps: float) -> Any:
        ctx.over = tuple(range(-dimensions, 0))
        scale = (data.square().mean(ctx.over, keepdim=True) + eps).rsqrt_()
        ctx.save_for_backward(data, weight, scale)
        return data * scale if weight is None else (data * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        data, weight, scale = ctx.saved_tensors
        normed = data * scale
        of_weight = None if weight is None else (gradient * normed).sum(tuple(range(gradient.dim() - len(ctx.over))))
        of_normed = gradient if weight is None else gradient * weight
        shared = (of_normed * normed).mean(ctx.over, keepdim=True)
        return (of_normed - normed.mul_(shared)).mul_(scale), of_weight, None, None


def _gru_cell(data: Any, hidden: Any, *weights: Any) -> Any:
    of_data, of_hidden = F.linear(data, weights[0]), F.linear(hidden, weights[1])
    return _GruCell.apply(of_data, of_hidden, hidden, *weights[2:])


class _GruCell(torch.autograd.Function):
    """Keeps five numbers for each of the hidden state, as the fused kernel, and its inputs, as its formula in torch."""

    @staticmethod
    def forward(ctx: Any, of_data: Any, of_hidden: Any, hidden: Any, *biases: Any) -> Any:
        kept = of_data, of_hidden, hidden, *biases
        if biases:
            of_data, of_hidden = of_data + biases[0], of_hidden + biases[1]
        (reset_data, update_data, new_data), parts = of_data.chunk(3, 1), of_hidden.chunk(3, 1)
        reset, update = torch.sigmoid(reset_data + parts[0]), torch.sigmoid(update_data + parts[1])
        new = torch.tanh(new_data + reset * parts[2])
        ctx.save_for_backward(torch.cat([reset, update, new, hidden, parts[2]], 1), *kept)
        ctx.biases = len(biases)
        return new + update * (hidden - new)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        reset, update, new, hidden, new_hidden = ctx.saved_tensors[0].chunk(5, 1)
        of_new = gradient * (1 - update) * (1 - new.square())
        of_update = gradient * (hidden - new) * update * (1 - update)
        of_reset = of_new * new_hidden * reset * (1 - reset)
        of_data = torch.cat([of_reset, of_update, of_new], 1)
        of_hidden = torch.cat([of_reset, of_update, of_new * reset], 1)
        of_biases = (of_data.sum(0), of_hidden.sum(0)) if ctx.biases else ()
        return of_data, of_hidden, gradient * update, *of_biases
