"""Rebuild a call from a key: the operator, with random inputs like the captured ones. Nothing is unpickled.

Keys come from files, so a key may only call operators that compute: see :func:`refuse_no_compute`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gpuledger.errors import InputError
from gpuledger.operator_key import ITEM_BYTES, OperatorKey, is_tensor
from gpuledger.ops.workloads.values import InputValues, values_of

HOST = torch.device("cpu")
NAMESPACES = ("aten", "prims", "torchvision")
"""Allowed namespaces of operators. ``image`` of torchvision is not, because it reads and writes files."""
_PLAIN = frozenset({"Tensor", "int", "float", "bool", "complex", "number", "str", "Device", "Generator"})
_WRAPPING = re.compile(r"Optional\[|List\[|\]")
_CHOICES: dict[str, type] = {
    "torch": torch.dtype, "memory_format": torch.memory_format, "layout": torch.layout,
}  # fmt: skip
"""Names in a key -> required type of the value."""


@dataclass(frozen=True)
class Call:
    """An operator with its inputs. Call it to run the operator, which can change its inputs."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self) -> Any:
        """Run it."""
        return self.function(*self.args, **self.kwargs)


def rebuild(key: OperatorKey, device: str | torch.device = "cpu") -> Call:
    """Return a call of the operator with inputs of the shapes, dtypes and strides in its key, on a device.

    The same key gives the same values. On ``meta``, a call computes shapes and dtypes only. The caller has to apply the
    key's flags.

    Raises:
        InputError: this torch has no such operator, or an input cannot be created.
    """
    function = find_operator(key.operator)
    drawer = _Drawer(key, torch.device(device), _named(function, key))
    with torch.no_grad():
        args = tuple(drawer.argument(name, value) for name, value in drawer.positional)
        kwargs = {name: drawer.argument(name, value) for name, value in key.keywords.items()}
    return Call(function, args, kwargs)


def find_operator(name: str) -> Any:
    """Return the operator for a name such as ``aten.addmm.default``.

    Raises:
        InputError: it does not exist, or it does more than compute.
    """
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.rpartition(".")
    if namespace not in NAMESPACES:
        known = f"only operators of {', '.join(NAMESPACES)} can be measured"
        raise InputError(f"{name}: {known}", hint="Measure the whole model instead")
    try:
        function = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except (AttributeError, RuntimeError) as error:
        hint = None if namespace == "aten" else f"Import {namespace} first"
        raise InputError(f"{name}: this PyTorch ({torch.__version__}) has no such operator", hint=hint) from error
    refuse_no_compute(name, function)
    return function


def refuse_no_compute(name: str, function: Any) -> None:
    """Do nothing if an operator only computes tensors from tensors, numbers, and words that select a kernel.

    ``aten`` also has operators that open files (``from_file``), end processes or keep objects (those of TorchScript).
    Their schemas show it: they have arguments or results other than tensors and numbers, or a text but no tensor.

    Raises:
        InputError: it is not such an operator.
    """
    if not isinstance(function, torch._ops.OpOverload):
        raise InputError(f"{name}: not an operator")
    schema = function._schema
    kinds = {_element(one.type) for one in schema.arguments}
    returned = {_element(one.type) for one in schema.returns}
    has_input = any(_element(one.type) == "Tensor" and not one.kwarg_only for one in schema.arguments)  # not just out=
    makes_tensor = "Tensor" in returned and "str" not in kinds
    if not kinds | returned <= _PLAIN or not (has_input or makes_tensor):
        raise InputError(
            f"{name}: not measured, because it does more than compute", hint="Measure the whole model instead"
        )


def _element(kind: Any) -> str:
    """Return the type inside lists and optionals, as TorchScript writes it."""
    return _WRAPPING.sub("", str(kind))


def _named(function: Any, key: OperatorKey) -> dict[str, Any]:
    names = [argument.name for argument in function._schema.arguments]
    return {**dict(zip(names, key.arguments, strict=False)), **key.keywords}


class _Drawer:
    """Creates the arguments of one call."""

    def __init__(self, key: OperatorKey, device: torch.device, named: dict[str, Any]) -> None:
        self._key = key
        self._device = device
        self._named = named
        self._drawn: list[torch.Tensor] = []
        self._generators: dict[torch.device, torch.Generator] = {}

    @property
    def positional(self) -> list[tuple[str, Any]]:
        """Return the positional arguments with their names."""
        return list(self._named.items())[: len(self._key.arguments)]

    def argument(self, name: str, value: Any, place: int | None = None) -> Any:
        """Return one argument."""
        if is_tensor(value):
            return self._tensor(value, values_of(self._key, name, place, self._named))
        if isinstance(value, list):
            return [self.argument(name, inner, number) for number, inner in enumerate(value)]
        if isinstance(value, dict):
            return self._special(value)
        return value

    def _special(self, value: dict[str, Any]) -> Any:
        ((kind, inner),) = value.items()
        if kind == "device":
            return self._device if inner == "card" else HOST
        if kind == "float":
            return float(inner)
        if kind == "complex":
            return complex(*inner)
        if kind in _CHOICES:
            found = getattr(torch, str(inner), None)
            if isinstance(found, _CHOICES[kind]):
                return found
        raise InputError(
            f"{self._key.operator}: its {inner} cannot be recreated", hint="Measure the whole model instead"
        )

    def _tensor(self, described: Mapping[str, Any], values: InputValues) -> torch.Tensor:
        if "same" in described:
            return self._drawn[int(described["same"])]
        if "stride" not in described or described["dtype"] not in ITEM_BYTES:
            what = described.get("layout", described["dtype"])
            raise InputError(f"{self._key.operator}: a tensor of {what} cannot be recreated")
        device = HOST if described.get("host") else self._device
        tensor = self._drawn_tensor(described, values, device)
        self._drawn.append(tensor)
        return tensor

    def _drawn_tensor(self, described: Mapping[str, Any], values: InputValues, device: torch.device) -> torch.Tensor:
        shape, stride = tuple(described["shape"]), tuple(described["stride"])
        dtype = getattr(torch, described["dtype"])
        span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if all(shape) else 0
        storage = torch.empty(span, dtype=dtype, device=device)
        tensor = storage.as_strided(shape, stride)
        if device.type == "meta":
            return tensor
        drawn = self._values(shape, dtype, values, device)
        share = described.get("sparsity")
        if share:
            drawn = drawn * (torch.rand(shape, device=device, generator=self._generator(device)) >= share)
        # overlapping elements are written once
        once = tuple(
            slice(0, 1) if step == 0 and size > 1 else slice(None) for size, step in zip(shape, stride, strict=True)
        )
        tensor[once].copy_(drawn[once])
        return tensor

    def _generator(self, device: torch.device) -> torch.Generator:
        known = self._generators.get(device)
        if known is None:
            known = self._generators[device] = torch.Generator(device=device)
            known.manual_seed(int(self._key.digest[:15], 16))
        return known

    def _values(
        self, shape: tuple[int, ...], dtype: torch.dtype, values: InputValues, device: torch.device
    ) -> torch.Tensor:
        how: dict[str, Any] = {"device": device, "generator": self._generator(device)}
        if values.kind in ("offsets", "counts"):
            return _partition(shape, values, device)
        if dtype == torch.bool:
            return torch.randint(0, 2, shape, **how)
        if not (dtype.is_floating_point or dtype.is_complex):
            low = 1 if values.kind == "positive" else values.low
            drawn = torch.randint(low, max(values.high, low + 1), shape, **how)
            return drawn.sort(-1).values if values.kind == "sorted" and shape else drawn
        if dtype.is_complex:
            return torch.randn(shape, dtype=torch.complex64, **how)
        return _shaped(torch.randn(shape, **how), values)


def _shaped(normal: torch.Tensor, values: InputValues) -> torch.Tensor:
    """Return normal values converted to valid values of an input."""
    if values.kind == "positive":
        return normal.abs() + 0.1
    if values.kind == "share":
        return normal.sigmoid()
    if values.kind == "softmax":
        return normal.softmax(values.dim)
    if values.kind == "log_softmax":
        return normal.log_softmax(values.dim)
    if values.kind == "sorted" and normal.dim():
        return normal.sort(-1).values
    if values.kind == "matrix":
        size = normal.shape[-1]
        return normal @ normal.mT / size + torch.eye(size, device=normal.device)
    return normal


def _partition(shape: tuple[int, ...], values: InputValues, device: torch.device) -> torch.Tensor:
    """Return evenly rising offsets up to ``high``, or counts with the sum ``high``."""
    count = shape[0]
    if values.kind == "offsets":
        return torch.linspace(0, values.high, count, device=device).long()
    edges = torch.linspace(0, values.high, count + 1, device=device).long()
    return edges.diff()
