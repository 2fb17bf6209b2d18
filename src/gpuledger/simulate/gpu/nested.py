"""Nested tensors with jagged layout: one tensor with all values, and one with the offsets of the parts."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nested._internal import nested_tensor, sdpa
from torch.nested._internal.nested_int import NestedIntNode

from gpuledger.simulate.gpu.functions import SimulatedFunctions
from gpuledger.simulate.gpu.fused_kernels import HALVES
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.traits import Traits, listed_traits


def place_nested(patches: Patches, functions: SimulatedFunctions) -> None:
    """Let nested tensors have their values and offsets on the GPU, and choose CUDA's kernels of attention for them."""
    kind: Any = nested_tensor.NestedTensor
    plain_new, plain_dispatch = kind.__new__, vars(kind)["__torch_dispatch__"].__func__

    # Their code is written in Python, and asks for the device of the values. It is the CPU, as it is for autograd.
    def new(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return plain_new(*args, **kwargs)

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return plain_dispatch(*args, **kwargs)

    patches.put(kind, "__new__", staticmethod(new))
    patches.put(kind, "__torch_dispatch__", classmethod(dispatch))
    patches.put(FakeTensorMode, "create_symbolic_nested_int", _ragged_size)
    _patch_attention(patches, functions)


def _ragged_size(_mode: Any, *, nt_tensor_id: int | None = None) -> Any:
    """Return the ragged size that stands for offsets without data: a new one, or that of offsets with data."""
    number = nested_tensor._tensor_id_counter if nt_tensor_id is None else nt_tensor_id
    nested_tensor._tensor_id_counter += nt_tensor_id is None
    return torch.SymInt(NestedIntNode(number, 1))


def _patch_attention(patches: Patches, functions: SimulatedFunctions) -> None:
    """Answer whether a kernel can run. torch asks for flash first; other conditions it checks itself.

    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
    """
    on, device = torch.backends.cuda, functions.device

    def takes_flash(query: Any, gpu: Traits) -> bool:
        return on.flash_sdp_enabled() and query.dtype in HALVES and gpu.compute_capability >= (8, 0)

    def takes_efficient(query: Any, gpu: Traits) -> bool:
        recent = gpu.compute_capability >= (8, 0)
        alignment = 16 // query.element_size()
        dtypes = (*HALVES, torch.float32) if recent else (torch.float16, torch.float32)
        return on.mem_efficient_sdp_enabled() and query.dtype in dtypes and query.shape[-1] % alignment == 0

    def asking(takes: Any, plain: Any) -> Any:
        def can_use(params: Any, debug: bool = False) -> bool:
            values = params.query._values
            if not functions.on_card(values):
                return bool(plain(params, debug))
            own = takes(values, device.sizing.own)
            device.elsewhere.approximate.update(gpu for gpu in listed_traits() if takes(values, gpu) != own)
            return bool(own)

        return can_use

    for takes, name in ((takes_flash, "can_use_flash_attention"), (takes_efficient, "can_use_efficient_attention")):
        patches.put(sdpa, name, asking(takes, getattr(on, name)))
