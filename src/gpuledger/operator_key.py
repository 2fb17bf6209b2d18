"""The key of an operator call: the operator, its inputs and the settings that affect it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gpuledger.errors import InputError
from gpuledger.files.shapes import Fields, ListOf, check_shape, maybe

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1, "qint8": 1, "quint8": 1, "qint32": 4,
    "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2, "complex32": 4,
    "uint32": 4, "int32": 4, "float32": 4, "uint64": 8, "int64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes of one element by the dtype's name."""

SPEAKERS = (
    "aten::convolution",
    "aten::convolution_backward",
    *(
        f"aten::_scaled_dot_product_{kind}_attention{backward}"
        for kind in ("flash", "efficient", "cudnn")
        for backward in ("", "_backward")
    ),
)
"""Operators, as named in a trace, with inputs that describe their kernels. Inner operators that launch the kernels have
other arguments, depending on the library."""

KEYWORDS = "kwargs"
"""Key of the dictionary with an operator's keyword arguments, after the positional ones."""

_SIZES = ListOf(int, most=64)
_TENSOR = Fields(
    {
        "shape": _SIZES,
        "dtype": str,
        "stride": maybe(_SIZES),
        "same": maybe(int),
        "host": maybe(bool),
        "sparsity": maybe(float),
    },
    ("shape", "dtype"),
)
_FLAGS = Fields({"autocast": maybe(str), "tf32": maybe(bool), "grad": maybe(bool)})

NO_FLAGS: dict[str, Any] = {"autocast": None, "tf32": False, "grad": False}


@dataclass(frozen=True)
class OperatorKey:
    """One distinct operator call.

    Attributes:
        operator: ``aten.addmm.default``.
        inputs: The positional arguments as JSON values, then ``{"kwargs": {…}}`` if there are keyword arguments.
            A tensor is ``{"shape", "dtype", "stride"}``, with ``"same": n`` if it is the n-th distinct tensor again,
            ``"host": true`` if it is not on the GPU, and ``"sparsity": 0.9`` if that share of it is zero. Values that
            JSON does not have are an object with one key: ``{"float": "-inf"}``, ``{"torch": "float16"}``,
            ``{"complex": [re, im]}``, ``{"device": "card"}``.
        flags: ``autocast`` (a dtype or None), ``tf32`` (whether this operator may use it), ``grad``.
    """

    operator: str
    inputs: tuple[Any, ...]
    flags: Mapping[str, Any] = field(default_factory=lambda: dict(NO_FLAGS))

    @cached_property
    def canonical(self) -> str:
        """Return the key as JSON text, the same for equal keys."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of :attr:`canonical`, as hex."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OperatorKey) and other.canonical == self.canonical

    def __hash__(self) -> int:
        return hash(self.canonical)

    @property
    def name(self) -> str:
        """Return the operator without namespace and overload: ``addmm``."""
        return self.operator.split(".")[1] if "." in self.operator else self.operator

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Return the positional arguments."""
        return self.inputs[:-1] if self._has_keywords else self.inputs

    @property
    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments."""
        return dict(self.inputs[-1][KEYWORDS]) if self._has_keywords else {}

    @property
    def _has_keywords(self) -> bool:
        return bool(self.inputs) and isinstance(self.inputs[-1], dict) and set(self.inputs[-1]) == {KEYWORDS}

    @property
    def text(self) -> str:
        """Return the call in one line, for people: ``convolution(32x3x224x224, 64x3x7x7, None, [2, 2], …)``."""
        named = [f"{name}={value_text(value)}" for name, value in self.keywords.items()]
        return f"{self.operator.removeprefix('aten.')}({', '.join([*map(value_text, self.arguments), *named])})"

    def tensors(self) -> Iterator[dict[str, Any]]:
        """Yield the descriptions of the tensors, in the order of the arguments."""
        yield from self._tensors

    @cached_property
    def _tensors(self) -> tuple[dict[str, Any], ...]:
        return tuple(tensors_in(self.inputs))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value that :meth:`from_json` reads."""
        return {"operator": self.operator, "inputs": list(self.inputs), "flags": dict(self.flags)}

    @classmethod
    def from_json(cls, value: Any) -> OperatorKey:
        """Return the key that :meth:`to_json` wrote.

        Raises:
            InputError: the value is none.
        """
        if not isinstance(value, dict) or not isinstance(value.get("operator"), str):
            raise InputError("operator key: expected an object with operator, inputs and flags")
        inputs, flags = value.get("inputs"), value.get("flags")
        if not isinstance(inputs, list) or not isinstance(flags, dict):
            raise InputError(f"operator key of {value['operator']:.80}: inputs or flags are missing")
        try:
            for tensor in tensors_in(inputs):
                _check_tensor(tensor)
            check_shape(flags, _FLAGS, "flags")
        except ValueError as error:
            raise InputError(f"operator key of {value['operator']:.80}: {error}") from error
        return cls(value["operator"], tuple(inputs), flags)


def _check_tensor(tensor: Mapping[str, Any]) -> None:
    """Check the description of a tensor.

    Raises:
        ValueError: it is none.
    """
    check_shape(dict(tensor), _TENSOR, "tensor")
    if tensor["dtype"] not in ITEM_BYTES:
        raise ValueError(f"tensor.dtype: unknown {tensor['dtype']!r:.40}")
    stride = tensor.get("stride")
    if min(tensor["shape"], default=0) < 0 or (stride is not None and len(stride) != len(tensor["shape"])):
        raise ValueError("tensor: a size is negative, or the strides do not match the sizes")


def value_text(value: Any) -> str:
    """Return one argument for people; float32 and contiguous go without saying."""
    if is_tensor(value):
        dtype = "" if value["dtype"] == "float32" else f":{value['dtype']}"
        zeros = f" ({value['sparsity'] * 100:g} % zeros)" if value.get("sparsity") else ""
        return ("x".join(map(str, value["shape"])) or "scalar") + dtype + zeros
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, dict) and len(value) == 1:
        return str(next(iter(value.values())))
    return str(value)


def tensors_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the tensor descriptions in a nested JSON value."""
    if isinstance(value, dict):
        if is_tensor(value):
            yield value
        else:
            for inner in value.values():
                yield from tensors_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from tensors_in(inner)


def is_tensor(value: Any) -> bool:
    """Return whether a JSON value describes a tensor."""
    return isinstance(value, dict) and "shape" in value and "dtype" in value


def tensor_bytes(tensor: Mapping[str, Any]) -> int:
    """Return the bytes of a tensor's elements; those repeated by a stride of 0 count once."""
    sizes = zip(tensor["shape"], tensor.get("stride") or [1] * len(tensor["shape"]), strict=True)
    elements = math.prod(int(size) for size, stride in sizes if stride or not size)
    return elements * ITEM_BYTES[tensor["dtype"]]
