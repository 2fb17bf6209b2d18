"""Sweeps: configurations of an operator that no model uses, for a predictor to learn from."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from gpuledger.errors import UsageError
from gpuledger.model.operator_key import ITEM_BYTES, OperatorKey
from gpuledger.operators.describe_json import tensor, turned
from gpuledger.operators.workload import Use, Workload

MOST = 1_000_000
"""Configurations that are looked at; more is a mistake in the lists."""


@dataclass(frozen=True)
class Grid:
    """The values that a sweep goes through. ``sizes`` are an image's edge, or a matrix's rows."""

    batch: tuple[int, ...] = (32,)
    sizes: tuple[int, ...] = (56,)
    channels: tuple[int, ...] = (64,)
    kernel: tuple[int, ...] = (3,)
    stride: tuple[int, ...] = (1,)
    groups: tuple[int, ...] = (1,)
    dtype: tuple[str, ...] = ("float32",)
    sparsity: tuple[float, ...] = (0.0,)
    weight_sparsity: tuple[float, ...] = (0.0,)


Chosen = Mapping[str, Any]


def sweep(operator: str, grid: Grid, sample: int | None = None, seed: int = 0) -> Workload:
    """Return a workload of an operator's configurations, each once.

    Args:
        operator: One of :data:`OPERATORS`.
        grid: The values to go through; combinations that cannot be are left out.
        sample: How many of them are drawn; None takes all.
        seed: Of the draw.

    Raises:
        UsageError: no such operator or dtype, too many combinations, or none that can be.
    """
    if operator not in OPERATORS:
        raise UsageError(f"sweep {operator}: unknown", hint=f"known: {', '.join(OPERATORS)}")
    _check(grid)
    names, make = OPERATORS[operator]
    axes = [tuple(getattr(grid, _axis(name))) for name in names]
    count = 1
    for axis in axes:
        count *= len(axis)
    if count > MOST:
        raise UsageError(f"sweep {operator}: {count:,} combinations, at most {MOST:,} are looked at")
    keys = list(dict.fromkeys(_keys(names, axes, make)))
    if not keys:
        raise UsageError(f"sweep {operator}: no combination can be", hint="do the groups divide the channels?")
    if sample is not None and sample < len(keys):
        keys = random.Random(seed).sample(keys, sample)  # noqa: S311 - a draw that can be repeated
    settings = {"device": "any", "source": f"sweep of {operator}", "notes": [], "no_kernel": {}}
    return Workload(f"sweep-{operator}", "inference", tuple(Use(key, 1) for key in keys), (), settings)


def _check(grid: Grid) -> None:
    for dtype in grid.dtype:
        if dtype not in ITEM_BYTES:
            raise UsageError(f"--dtype {dtype}: unknown", hint=f"known: {', '.join(ITEM_BYTES)}")
    for share in (*grid.sparsity, *grid.weight_sparsity):
        if not 0 <= share < 1:
            raise UsageError(f"--sparsity {share}: not from 0 up to 1")
    for name in ("batch", "sizes", "channels", "kernel", "stride", "groups"):
        if min(getattr(grid, name)) < 1:
            raise UsageError(f"--{name}: {min(getattr(grid, name))} is not at least 1")


def _axis(name: str) -> str:
    """Return the grid's list behind a value: channels come in and go out by the same list."""
    return {"into": "channels", "out": "channels", "size": "sizes"}.get(name, name)


def _keys(
    names: Sequence[str], axes: Sequence[Sequence[Any]], make: Callable[[Chosen], OperatorKey | None]
) -> Iterator[OperatorKey]:
    for values in product(*axes):
        key = make(dict(zip(names, values, strict=True)))
        if key is not None:
            yield key


def _flags(dtype: str, *, tf32: bool = False) -> dict[str, Any]:
    return {"autocast": None, "tf32": tf32 and dtype == "float32", "grad": False}


def _conv2d(at: Chosen) -> OperatorKey | None:
    if at["into"] % at["groups"] or at["out"] % at["groups"] or at["kernel"] > at["size"]:
        return None
    image = tensor((at["batch"], at["into"], at["size"], at["size"]), at["dtype"], at["sparsity"])
    shape = (at["out"], at["into"] // at["groups"], at["kernel"], at["kernel"])
    weight = tensor(shape, at["dtype"], at["weight_sparsity"])
    padding = at["kernel"] // 2
    inputs = (image, weight, None, [at["stride"]] * 2, [padding] * 2, [1, 1], False, [0, 0], at["groups"])
    return OperatorKey("aten.convolution.default", inputs, _flags(at["dtype"], tf32=True))


def _linear(at: Chosen) -> OperatorKey:
    bias = tensor((at["out"],), at["dtype"])
    rows = tensor((at["batch"] * at["size"], at["into"]), at["dtype"], at["sparsity"])
    weight = turned((at["into"], at["out"]), at["dtype"], at["weight_sparsity"])
    return OperatorKey("aten.addmm.default", (bias, rows, weight), _flags(at["dtype"]))


def _bmm(at: Chosen) -> OperatorKey:
    left = tensor((at["batch"], at["size"], at["into"]), at["dtype"], at["sparsity"])
    right = tensor((at["batch"], at["into"], at["size"]), at["dtype"])
    return OperatorKey("aten.bmm.default", (left, right), _flags(at["dtype"]))


def _image(at: Chosen) -> dict[str, Any]:
    return tensor((at["batch"], at["channels"], at["size"], at["size"]), at["dtype"], at["sparsity"])


def _relu(at: Chosen) -> OperatorKey:
    return OperatorKey("aten.relu.default", (_image(at),), _flags(at["dtype"]))


def _add(at: Chosen) -> OperatorKey:
    return OperatorKey("aten.add.Tensor", (_image(at), _image(at)), _flags(at["dtype"]))


def _rows(at: Chosen) -> dict[str, Any]:
    return tensor((at["batch"], at["size"], at["channels"]), at["dtype"], at["sparsity"])


def _softmax(at: Chosen) -> OperatorKey:
    return OperatorKey("aten._softmax.default", (_rows(at), -1, False), _flags(at["dtype"]))


def _layer_norm(at: Chosen) -> OperatorKey:
    scale = tensor((at["channels"],), at["dtype"])
    inputs = (_rows(at), [at["channels"]], scale, scale, 1e-5)
    return OperatorKey("aten.native_layer_norm.default", inputs, _flags(at["dtype"]))


_PLAIN = ("batch", "channels", "size", "dtype", "sparsity")
_PRODUCT = ("batch", "size", "into", "out", "dtype", "sparsity", "weight_sparsity")
OPERATORS: dict[str, tuple[tuple[str, ...], Callable[[Chosen], OperatorKey | None]]] = {
    "conv2d": ((*_PRODUCT, "kernel", "stride", "groups"), _conv2d),
    "linear": (_PRODUCT, _linear),
    "bmm": (("batch", "size", "into", "dtype", "sparsity"), _bmm),
    "relu": (_PLAIN, _relu),
    "add": (_PLAIN, _add),
    "softmax": (_PLAIN, _softmax),
    "layer_norm": (_PLAIN, _layer_norm),
}
"""Operators that can be swept: the values each goes through, and what makes a key of them."""
