"""``nn.TransformerEncoderLayer`` outside of training: one operator of PyTorch in place of the layer's modules.

PyTorch calls it if no gradients are needed, and if no mode for torch functions is active, as in a simulation. The layer
here allocates what that operator does on a GPU. With masks, the modules of the layer are simulated.

Source: ``transformer_encoder_layer_forward`` in aten/src/ATen/native/transformers/transformer.cpp, and
``native_multi_head_attention_cuda`` in aten/src/ATen/native/transformers/cuda/attention.cu. The sizes and the order
are those of a recording on an H200.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.overrides
from torch import nn
from torch.nn import functional

from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.patches import Patches

_OPERATOR = "_transformer_encoder_layer_fwd"
_ALIGNED = 8
"""The size of a head has to be a multiple of this for attention in one kernel."""
_PLAIN = (torch._C._disabled_torch_function_impl, torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]


class _Asked(threading.local):
    """Whether a layer that may use the operator is about to ask for modes."""

    by_layer = False


class FastEncoderLayers:
    """Lets layers choose PyTorch's operator as without a mode, and simulates it.

    Args:
        device: The GPU.
    """

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._asked = _Asked()

    def install(self, patches: Patches) -> None:
        """Replace the operator and what decides on it; nothing if this version of PyTorch has no such operator."""
        if not hasattr(torch, _OPERATOR):
            return
        patches.put(torch, _OPERATOR, layer_forward)
        patches.put(nn.TransformerEncoderLayer, "forward", self._noting(nn.TransformerEncoderLayer.forward))
        patches.put(torch.overrides, "has_torch_function", self._without_modes(torch.overrides.has_torch_function))

    def _noting(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def forward(
            layer: Any, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
        ) -> Any:
            is_plain = src_mask is None and src_key_padding_mask is None and isinstance(src, torch.Tensor)
            self._asked.by_layer = is_plain and self._device.holds(src)
            try:
                return plain(layer, src, src_mask, src_key_padding_mask, is_causal)
            finally:
                self._asked.by_layer = False

        return forward

    def _without_modes(self, plain: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def has_torch_function(tensors: Any) -> bool:
            by_layer, self._asked.by_layer = self._asked.by_layer, False
            return any(map(_overrides, tensors)) if by_layer else plain(tensors)

        return has_torch_function


def _overrides(tensor: Any) -> bool:
    """Return whether the class of a tensor handles torch functions itself."""
    function = getattr(type(tensor), "__torch_function__", None)
    return function is not None and getattr(function, "__func__", function) not in _PLAIN


def layer_forward(src: torch.Tensor, embed_dim: int, heads: int, *given: Any, **named: Any) -> torch.Tensor:
    """Return the result of the operator, which has weights of attention, norms and products after these arguments."""
    in_weight, in_bias, out_weight, out_bias, use_gelu, norm_first, eps, *weights = given
    norms, products = (weights[:2], weights[2:4]), weights[4:8]

    def norm(data: torch.Tensor, place: int) -> torch.Tensor:
        weight, bias = norms[place]
        return functional.layer_norm(data, (embed_dim,), weight, bias, eps)

    data = norm(src, 0) if norm_first else src
    data = _attention(data, heads, (in_weight, in_bias), (out_weight, out_bias))
    data.add_(src)
    if not norm_first:
        data = norm(data, 0)
    before = data
    if norm_first:
        data = norm(data, 1)
    data = _products(data, *products, use_gelu=use_gelu)
    data.add_(before)
    return data if norm_first else norm(data, 1)


def _attention(data: torch.Tensor, heads: int, into: Any, out: Any) -> torch.Tensor:
    batch, length, width = data.shape
    size = width // heads
    if size % _ALIGNED or data.dtype is torch.float64:
        return _plain_attention(data, heads, into, out)
    query, key, value = (
        part.view(batch, length, heads, size).transpose(1, 2) for part in functional.linear(data, *into).chunk(3, -1)
    )
    attended = functional.scaled_dot_product_attention(query, key, value)
    joined = attended.transpose(1, 2).reshape(batch, length, width)
    del attended
    return functional.linear(joined, *out)


def _plain_attention(data: torch.Tensor, heads: int, into: Any, out: Any) -> torch.Tensor:
    """Return attention in single steps. The result of the second product replaces the queries."""
    batch, length, width = data.shape
    projected = functional.linear(data, into[0])
    packed = data.new_empty(3, batch, heads, length, width // heads)
    del projected
    scores = packed[0] @ packed[1].transpose(-2, -1)
    scores = scores.softmax(-1)
    return functional.linear(packed[0].transpose(1, 2).reshape(batch, length, width), *out)


def _products(
    data: torch.Tensor, weight: Any, bias: Any, last_weight: Any, last_bias: Any, *, use_gelu: bool
) -> torch.Tensor:
    """Return the result of two products. The activation between them is a part of the first."""
    flat = data.reshape(-1, data.shape[-1])
    hidden = torch._addmm_activation(bias, flat, weight.t(), use_gelu=use_gelu)
    hidden = torch.addmm(last_bias, hidden, last_weight.t())
    return hidden.view(data.shape)
