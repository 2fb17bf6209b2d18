"""Sweeps: configurations of an operator to measure, as examples for predictions."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gpuledger.errors import UsageError
from gpuledger.operator_key import ITEM_BYTES, OperatorKey
from gpuledger.ops.predict.sweep_keys import OPERATORS, Swept, count_of, keys_at
from gpuledger.ops.workloads.workload import Use, Workload

MOST = 1_000_000
"""Maximum number of combinations."""


@dataclass(frozen=True)
class Grid:
    """The values of a sweep.

    Attributes:
        sizes: Width and height of an image, or rows of a matrix.
        bias: 0 or 1, whether a convolution adds a bias.
        pieces: Number of tensors that are concatenated.
    """

    batch: tuple[int, ...] = (32,)
    sizes: tuple[int, ...] = (56,)
    channels: tuple[int, ...] = (64,)
    kernel: tuple[int, ...] = (3,)
    stride: tuple[int, ...] = (1,)
    groups: tuple[int, ...] = (1,)
    dtype: tuple[str, ...] = ("float32",)
    sparsity: tuple[float, ...] = (0.0,)
    weight_sparsity: tuple[float, ...] = (0.0,)
    bias: tuple[int, ...] = (0,)
    pieces: tuple[int, ...] = (2,)


def sweep(
    operator: str,
    grid: Grid,
    sample: int | None = None,
    seed: int = 0,
    *,
    train: bool = False,
    reuse_bytes: float | None = None,
) -> Workload:
    """Return a workload with the configurations of an operator, without duplicates.

    Args:
        operator: One of :data:`OPERATORS`.
        grid: The values. Invalid combinations are left out.
        sample: Number of combinations to choose at random; None for all.
        seed: Random seed.
        train: Include the gradient operators of each configuration.
        reuse_bytes: Bytes accessed since the inputs were last used: 0 if they are in the cache, None if not.

    Raises:
        UsageError: no such operator or dtype, too many combinations, or no valid one.
    """
    if operator not in OPERATORS:
        raise UsageError(f"sweep {operator}: unknown operator", hint=f"Use one of {', '.join(OPERATORS)}")
    _check(grid)
    swept = OPERATORS[operator]
    axes = [tuple(getattr(grid, _axis(name))) for name in swept.values]
    count = count_of(axes)
    if count > MOST:
        raise UsageError(f"sweep {operator}: {count:,} combinations, the limit is {MOST:,}")
    places: Sequence[int] = range(count)
    if sample is not None:
        places = random.Random(seed).sample(places, count)  # noqa: S311 - a draw that can be repeated
    found = _configurations(swept, axes, places, train=train)
    keys = dict.fromkeys(key for configuration in islice(found, sample) for key in configuration)
    if not keys:
        raise UsageError(f"sweep {operator}: no combination is valid", hint="Check that the groups divide the channels")
    settings = {"device": "any", "source": f"sweep of {operator}", "notes": [], "no_kernel": {}}
    name = f"sweep-{operator}" + ("-training" if train else "") + ("" if reuse_bytes is None else "-hot")
    return Workload(
        name, "training" if train else "inference", tuple(Use(key, 1, (), reuse_bytes) for key in keys), (), settings
    )


def _check(grid: Grid) -> None:
    for dtype in grid.dtype:
        if dtype not in ITEM_BYTES:
            raise UsageError(f"--dtype {dtype}: unknown dtype", hint=f"Use one of {', '.join(ITEM_BYTES)}")
    for share in (*grid.sparsity, *grid.weight_sparsity):
        if not 0 <= share < 1:
            raise UsageError(
                f"--sparsity {share}: expected 0 or more and less than 1",
                hint="Give the fraction of zeros, for example 0.5",
            )
    if not set(grid.bias) <= {0, 1}:
        raise UsageError(f"--bias {max(grid.bias)}: expected 0 or 1")
    for name in ("batch", "sizes", "channels", "kernel", "stride", "groups", "pieces"):
        if min(getattr(grid, name)) < 1:
            raise UsageError(f"--{name}: {min(getattr(grid, name))}: expected 1 or more")


def _axis(name: str) -> str:
    """Return the name of the grid's list for a value. Input and output channels share a list."""
    return {"into": "channels", "out": "channels", "size": "sizes"}.get(name, name)


def _configurations(
    swept: Swept, axes: Sequence[Sequence[Any]], places: Iterable[int], *, train: bool
) -> Iterator[tuple[OperatorKey, ...]]:
    """Yield the keys of each valid configuration that was not yielded before."""
    seen: set[OperatorKey] = set()
    for place in places:
        values = {}
        for name, axis in zip(swept.values, axes, strict=True):
            place, value = divmod(place, len(axis))
            values[name] = axis[value]
        keys = tuple(keys_at(swept, values, train=train))
        if keys and keys[0] not in seen:
            seen.add(keys[0])
            yield keys
