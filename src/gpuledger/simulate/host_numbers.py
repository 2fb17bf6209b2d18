"""Random numbers of the CPU that a program draws into tensors without data, such as the weights of its models.

They are drawn later, when the program draws others for itself: lengths, orders of batches. So these are the numbers of
a run. If the program draws none, no time is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from gpuledger.collect.adapter.dispatch_modes import run_outside_modes

_aten = torch.ops.aten
_MOST_NUMBERS = 1 << 27
"""Numbers that are drawn later, which takes less than a second. After more, other numbers are not those of a run."""
_PART = 1 << 20
"""Numbers that are drawn at once. Those of a tensor in such parts are the same as those of the whole tensor."""
_MOST_AT_ONCE = 1 << 24
"""Numbers of a tensor that a function of Python fills."""
_FILLS = frozenset(
    {"uniform_", "normal_", "random_", "exponential_", "log_normal_", "cauchy_", "geometric_", "bernoulli_"}
)
_MADE = {"rand": (_aten.uniform_.default, (0.0, 1.0)), "randn": (_aten.normal_.default, (0.0, 1.0))}
"""Functions that make tensors, and what fills them."""


@cache
def draws(func: Any) -> bool:
    """Return whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags


@dataclass(frozen=True)
class _Fill:
    """A call that fills a tensor of ``count`` numbers, in parts."""

    function: Any
    count: int
    dtype: torch.dtype
    others: tuple[Any, ...]
    kwargs: dict[str, Any]
    parts: int


class HostNumbers:
    """Draws the numbers of tensors without data when the program needs others."""

    def __init__(self) -> None:
        self._waiting: list[_Fill] = []
        self._count = 0

    def defer(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Note an operator on CPU tensors without data, if it draws numbers for them."""
        name = func.overloadpacket.__name__
        if name in _FILLS:
            target, others = args[0], tuple(args[1:])
            if not any(isinstance(other, torch.Tensor) for other in others):
                self._defer(func, target.numel(), target.dtype, others, kwargs)
        elif name in _MADE:
            fills, others = _MADE[name]
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            self._defer(fills, math.prod(args[0]), dtype, others, {})

    def defer_normal(
        self, function: Any, tensor: torch.Tensor, others: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Note a function that fills a tensor with normal numbers, and draws again what is outside of bounds."""
        count = tensor.numel()
        if count <= _MOST_AT_ONCE:
            self._defer(function, count, tensor.dtype, others, kwargs, parts=1)
        else:
            self._defer(_aten.normal_.default, count, tensor.dtype, others[:2], kwargs)

    def _defer(
        self,
        function: Any,
        count: int,
        dtype: torch.dtype,
        others: tuple[Any, ...],
        kwargs: dict[str, Any],
        parts: int | None = None,
    ) -> None:
        self._count += count
        if self._count > _MOST_NUMBERS:
            self._waiting.clear()
        else:
            self._waiting.append(_Fill(function, count, dtype, others, kwargs, parts or max(count // _PART, 1)))

    def catch_up(self) -> None:
        """Draw the numbers that wait."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            run_outside_modes(lambda: _draw(waiting))

    def forget(self) -> None:
        """Note that the generator has another state."""
        self._waiting.clear()
        self._count = 0


def _draw(fills: list[_Fill]) -> None:
    for fill in fills:
        last = fill.count - (fill.parts - 1) * _PART
        for count in (*[_PART] * (fill.parts - 1), last):
            fill.function(torch.empty(count, dtype=fill.dtype), *fill.others, **fill.kwargs)
