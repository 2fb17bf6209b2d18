"""Lazy modules: parameters without a shape are marked for the GPU, and placed there once they have a shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

from gpuledger.simulate.gpu.patches import Patches

_MARK = "_gpuledger_on_gpu"


def marked(tensor: Any, there: bool) -> Any:
    """Return a parameter or buffer without a shape, marked with the device that it will have."""
    setattr(tensor, _MARK, there)
    return tensor


def place_lazy(patches: Patches) -> None:
    """Place marked parameters and buffers on the GPU after the first call of their module has given them a shape."""
    plain = LazyModuleMixin._infer_parameters

    def infer(lazy: Any, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        plain(lazy, module, args, kwargs)
        module._apply(_placed, recurse=False)

    def _placed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cuda() if getattr(tensor, _MARK, False) and not is_lazy(tensor) else tensor

    patches.put(LazyModuleMixin, "_infer_parameters", infer)
    for kind in (UninitializedParameter, UninitializedBuffer):
        patches.put(kind, "__new__", _new_on_cpu(kind.__new__))


def _new_on_cpu(plain: Any) -> Any:
    """Return a constructor that marks what is made for the GPU."""

    def new(cls: Any, *args: Any, device: Any = None, **how: Any) -> Any:
        wanted = torch.get_default_device() if device is None else torch.device(device)
        made = plain(cls, *args, device=torch.device("cpu"), **how)
        return marked(made, wanted.type == "cuda")

    return new
