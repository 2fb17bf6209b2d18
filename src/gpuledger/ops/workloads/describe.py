"""Describe calls at the dispatcher as JSON values: arguments and settings of an operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gpuledger.operator_key import KEYWORDS, OperatorKey
from gpuledger.simulate.gpu.shortcuts import tensors_in

IsOnCard = Callable[[torch.Tensor], bool]
"""Returns whether a tensor is on the captured device."""

MATRIX_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "linear", "matmul", "einsum"})
_LEFT_OUT = {"layout": torch.strided, "pin_memory": False, "non_blocking": False}
"""Keyword arguments that are left out if they have these default values."""


@dataclass(frozen=True)
class _Side:
    """``card`` or ``host``."""

    name: str


class Describer:
    """Describes one call. The same tensor given twice differs from two equal tensors."""

    def __init__(self, is_on_card: IsOnCard, device_type: str) -> None:
        self._is_on_card = is_on_card
        self._device_type = device_type
        self._seen: dict[tuple[Any, ...], int] = {}

    def inputs(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arguments as the inputs of a key."""
        positional = [self.value(value) for value in args]
        named = {
            name: self.value(value)
            for name, value in kwargs.items()
            if value is not None and not isinstance(value, torch.Generator) and _LEFT_OUT.get(name, _MISSING) != value
        }
        return (*positional, {KEYWORDS: named}) if named else tuple(positional)

    def value(self, value: Any) -> Any:
        """Return one argument as a JSON value."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return [self.value(inner) for inner in value]
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, (int, torch.SymInt)):
            return int(value)
        if isinstance(value, (float, torch.SymFloat)):
            number = float(value)
            return number if math.isfinite(number) else {"float": str(number)}
        if isinstance(value, _Side):
            return {"device": value.name}
        if isinstance(value, torch.device):
            return {"device": "card" if value.type == self._device_type else "host"}
        return _special(value)

    def _tensor(self, tensor: torch.Tensor) -> dict[str, Any]:
        described: dict[str, Any] = describe_tensor(tensor)
        if not self._is_on_card(tensor):
            described["host"] = True
        if tensor.layout is torch.strided:
            identity = identity_of(tensor)
            if identity in self._seen:
                described["same"] = self._seen[identity]
            else:
                self._seen[identity] = len(self._seen)
        return described


_MISSING = object()


def describe_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    """Return shape, dtype and strides of a tensor, or its layout if it has no strides."""
    described: dict[str, Any] = {"shape": [int(n) for n in tensor.shape], "dtype": name_of(tensor.dtype)}
    if tensor.layout is torch.strided:
        described["stride"] = [int(n) for n in tensor.stride()]
    else:
        described["layout"] = name_of(tensor.layout)
    return described


def identity_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a value that is equal for views of the same elements."""
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


def name_of(value: Any) -> str:
    """Return the name of a dtype, layout or memory format without ``torch.``."""
    return str(value).removeprefix("torch.")


def _special(value: Any) -> dict[str, Any]:
    if isinstance(value, torch.dtype):
        return {"torch": name_of(value)}
    if isinstance(value, torch.memory_format):
        return {"memory_format": name_of(value)}
    if isinstance(value, torch.layout):
        return {"layout": name_of(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    return {"object": type(value).__name__}


def key_of(
    func: Any, args: Any, kwargs: dict[str, Any], result: Any, is_on_card: IsOnCard, device_type: str
) -> OperatorKey:
    """Return the key of a finished call."""
    device = _device_of((args, kwargs), result, is_on_card) if _takes_device(func) else None
    describer = Describer(is_on_card, device_type)
    inputs = describer.inputs(args, kwargs if device is None else {**kwargs, "device": device})
    return OperatorKey(str(func), inputs, flags_of(func, inputs, device_type))


def _takes_device(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


def _device_of(given: Any, result: Any, is_on_card: IsOnCard) -> _Side | None:
    """Return the device of a result, or None if it follows from the arguments."""
    made = [is_on_card(tensor) for tensor in tensors_in(result)]
    taken = [is_on_card(tensor) for tensor in tensors_in(given)]
    goes_without_saying = "device" not in given[1] and made[0] == any(taken)
    return None if goes_without_saying else _Side("card" if made[0] else "host")


def flags_of(func: Any, inputs: tuple[Any, ...], device_type: str) -> dict[str, Any]:
    """Return the current settings that affect an operator."""
    autocast = name_of(torch.get_autocast_dtype(device_type)) if torch.is_autocast_enabled(device_type) else None
    return {"autocast": autocast, "tf32": _may_use_tf32(func, inputs), "grad": torch.is_grad_enabled()}


def _may_use_tf32(func: Any, inputs: tuple[Any, ...]) -> bool:
    """Return whether an operator on float32 may use TF32. Applies to products and convolutions."""
    name = func.overloadpacket.__name__
    is_convolution = "conv" in name or "cudnn_rnn" in name
    if not is_convolution and name not in MATRIX_PRODUCTS:
        return False
    if not any(isinstance(value, dict) and value.get("dtype") == "float32" for value in inputs):
        return False
    place = torch.backends.cudnn.conv if is_convolution else torch.backends.cuda.matmul  # type: ignore[attr-defined]
    return bool(place.fp32_precision == "tf32")
