"""The operators of sweeps, with functions that create operator keys from values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.workloads.describe_json import tensor, turned

Chosen = Mapping[str, Any]
Key = OperatorKey
SCALARS = 1e-5
"""Epsilon of norms."""


@dataclass(frozen=True)
class Swept:
    """An operator for sweeps.

    Attributes:
        values: Names of its values.
        forward: Creates its key, or None for an invalid combination.
        backward: Creates the keys of its gradients; None if autograd needs no operator for them.
    """

    values: tuple[str, ...]
    forward: Callable[[Chosen], Key | None]
    backward: Callable[[Chosen], Iterator[Key]] | None = None


def keys_at(swept: Swept, at: Chosen, *, train: bool) -> Iterator[Key]:
    """Yield the keys of one configuration: that of the operator, and in training those of its gradients."""
    key = swept.forward(at)
    if key is None:
        return
    yield OperatorKey(key.operator, key.inputs, {**key.flags, "grad": train})
    if train and swept.backward is not None:
        yield from swept.backward(at)


def _flags(at: Chosen, *, tf32: bool = False) -> dict[str, Any]:
    return {"autocast": None, "tf32": tf32 and at["dtype"] == "float32", "grad": False}


# -- convolutions -----------------------------------------------------------------------------------------------------


def _conv2d(at: Chosen) -> Key | None:
    groups = at["groups"]
    if at["into"] % groups or at["out"] % groups or at["kernel"] > at["size"] + 2 * (at["kernel"] // 2):
        return None
    bias = tensor((at["out"],), at["dtype"]) if at["bias"] else None
    inputs = (_image(at, at["into"]), _window(at), bias, *_steps(at), groups)
    return Key("aten.convolution.default", inputs, _flags(at, tf32=True))


def _conv2d_backward(at: Chosen) -> Iterator[Key]:
    places = (at["size"] + 2 * (at["kernel"] // 2) - at["kernel"]) // at["stride"] + 1
    gradient = tensor((at["batch"], at["out"], places, places), at["dtype"])
    bias = [at["out"]] if at["bias"] else None
    mask = [True, True, bool(at["bias"])]
    inputs = (gradient, _image(at, at["into"]), _window(at), bias, *_steps(at), at["groups"], mask)
    yield Key("aten.convolution_backward.default", inputs, _flags(at, tf32=True))


def _window(at: Chosen) -> dict[str, Any]:
    shape = (at["out"], at["into"] // at["groups"], at["kernel"], at["kernel"])
    return tensor(shape, at["dtype"], at["weight_sparsity"])


def _steps(at: Chosen) -> tuple[Any, ...]:
    """Return stride, padding, dilation, whether transposed, and output padding, as arguments of a convolution."""
    return [at["stride"]] * 2, [at["kernel"] // 2] * 2, [1, 1], False, [0, 0]


def _alone(at: Chosen) -> Chosen:
    """Return the values of a depthwise convolution."""
    return {**at, "into": at["channels"], "out": at["channels"], "groups": at["channels"]}


def _depthwise_backward(at: Chosen) -> Iterator[Key]:
    return _conv2d_backward(_alone(at))


# -- products ---------------------------------------------------------------------------------------------------------


def _linear(at: Chosen) -> Key:
    bias = tensor((at["out"],), at["dtype"])
    weight = turned((at["into"], at["out"]), at["dtype"], at["weight_sparsity"])
    return Key("aten.addmm.default", (bias, _many(at), weight), _flags(at))


def _linear_backward(at: Chosen) -> Iterator[Key]:
    """Yield the gradients of input, weight and bias."""
    rows = at["batch"] * at["size"]
    gradient = tensor((rows, at["out"]), at["dtype"])
    weight = tensor((at["out"], at["into"]), at["dtype"], at["weight_sparsity"])
    yield Key("aten.mm.default", (gradient, weight), _flags(at))
    yield Key("aten.mm.default", (turned((at["out"], rows), at["dtype"]), _many(at)), _flags(at))
    yield Key("aten.sum.dim_IntList", (gradient, [0], True), _flags(at))


def _many(at: Chosen) -> dict[str, Any]:
    return tensor((at["batch"] * at["size"], at["into"]), at["dtype"], at["sparsity"])


def _bmm(at: Chosen) -> Key:
    left = tensor((at["batch"], at["size"], at["into"]), at["dtype"], at["sparsity"])
    right = tensor((at["batch"], at["into"], at["size"]), at["dtype"])
    return Key("aten.bmm.default", (left, right), _flags(at))


def _bmm_backward(at: Chosen) -> Iterator[Key]:
    """Yield the gradients of both matrices: products with the other one, transposed."""
    batch, size, into = at["batch"], at["size"], at["into"]
    gradient = tensor((batch, size, size), at["dtype"])
    left = {**tensor((batch, into, size), at["dtype"], at["sparsity"]), "stride": [size * into, 1, into]}
    right = {**tensor((batch, size, into), at["dtype"]), "stride": [size * into, 1, size]}
    yield Key("aten.bmm.default", (left, gradient), _flags(at))
    yield Key("aten.bmm.default", (gradient, right), _flags(at))


# -- elementwise, concatenations, norms -------------------------------------------------------------------------------


def _image(at: Chosen, channels: int) -> dict[str, Any]:
    return tensor((at["batch"], channels, at["size"], at["size"]), at["dtype"], at["sparsity"])


def _relu(at: Chosen) -> Key:
    return Key("aten.relu.default", (_image(at, at["channels"]),), _flags(at))


def _relu_backward(at: Chosen) -> Iterator[Key]:
    result, gradient = _image(at, at["channels"]), _image({**at, "sparsity": 0.0}, at["channels"])
    yield Key("aten.threshold_backward.default", (gradient, result, 0), _flags(at))


def _add(at: Chosen) -> Key:
    return Key("aten.add.Tensor", (_image(at, at["channels"]), _image(at, at["channels"])), _flags(at))


def _cat(at: Chosen) -> Key:
    """Return the key of a concatenation of one wide image and ``pieces`` - 1 others, as in DenseNet."""
    images = [_image(at, at["into"]), *(_image(at, at["out"]) for _ in range(at["pieces"] - 1))]
    return Key("aten.cat.default", (images, 1), _flags(at))


def _rows(at: Chosen) -> dict[str, Any]:
    return tensor((at["batch"], at["size"], at["channels"]), at["dtype"], at["sparsity"])


def _softmax(at: Chosen) -> Key:
    return Key("aten._softmax.default", (_rows(at), -1, False), _flags(at))


def _softmax_backward(at: Chosen) -> Iterator[Key]:
    rows = _rows({**at, "sparsity": 0.0})
    yield Key("aten._softmax_backward_data.default", (rows, rows, -1, {"torch": at["dtype"]}), _flags(at))


def _layer_norm(at: Chosen) -> Key:
    scale = tensor((at["channels"],), at["dtype"])
    inputs = (_rows(at), [at["channels"]], scale, scale, SCALARS)
    return Key("aten.native_layer_norm.default", inputs, _flags(at))


def _layer_norm_backward(at: Chosen) -> Iterator[Key]:
    scale = tensor((at["channels"],), at["dtype"])
    kept = tensor((at["batch"], at["size"], 1), "float32" if at["dtype"] != "float64" else "float64")
    gradient, rows = _rows({**at, "sparsity": 0.0}), _rows(at)
    inputs = (gradient, rows, [at["channels"]], kept, kept, scale, scale, [True] * 3)
    yield Key("aten.native_layer_norm_backward.default", inputs, _flags(at))


_PLAIN = ("batch", "channels", "size", "dtype", "sparsity")
_PRODUCT = ("batch", "size", "into", "out", "dtype", "sparsity", "weight_sparsity")
_CONVOLUTION = ("kernel", "stride", "bias")
OPERATORS: dict[str, Swept] = {
    "conv2d": Swept((*_PRODUCT, *_CONVOLUTION, "groups"), _conv2d, _conv2d_backward),
    "depthwise": Swept(
        (*_PLAIN, "weight_sparsity", *_CONVOLUTION), lambda at: _conv2d(_alone(at)), _depthwise_backward
    ),
    "linear": Swept(_PRODUCT, _linear, _linear_backward),
    "bmm": Swept(("batch", "size", "into", "dtype", "sparsity"), _bmm, _bmm_backward),
    "relu": Swept(_PLAIN, _relu, _relu_backward),
    "add": Swept(_PLAIN, _add),
    "cat": Swept(("batch", "into", "out", "size", "pieces", "dtype", "sparsity"), _cat),
    "softmax": Swept(_PLAIN, _softmax, _softmax_backward),
    "layer_norm": Swept(_PLAIN, _layer_norm, _layer_norm_backward),
}
"""Operators for sweeps. The gradients of cat are views, and that of add is the gradient itself."""


def count_of(axes: Sequence[Sequence[Any]]) -> int:
    """Return the number of combinations of lists of values."""
    return math.prod(len(axis) for axis in axes)
