"""Numbers that stand for values which are not computed: what a program decides by them is not decided by them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Decide = Callable[[Any, bool], "bool | None"]
"""Decides a comparison in a frame, given the truth by the numbers; None if the numbers decide."""


class UnknownNumber(float):
    """A placeholder value. Sums and products with it are unknown, too. Comparisons are decided by what follows.

    Args:
        value: The number.
        decide: Decides comparisons in a frame.
    """

    _decide: Decide

    def __new__(cls, value: float, decide: Decide) -> UnknownNumber:
        """Return a number with a value of its own."""
        made = super().__new__(cls, value)
        made._decide = decide
        return made

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)

    def __deepcopy__(self, memo: Any) -> UnknownNumber:
        return self


def _compares(name: str) -> Callable[[UnknownNumber, Any], Any]:
    plain = getattr(float, name)

    def compare(self: UnknownNumber, other: Any) -> Any:
        by_numbers = plain(self, other)
        if by_numbers is NotImplemented:
            return by_numbers
        decided = self._decide(sys._getframe(1), by_numbers)
        return by_numbers if decided is None else decided

    return compare


def _computes(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def compute(self: UnknownNumber, *others: Any) -> Any:
        made = plain(self, *others)
        return UnknownNumber(made, self._decide) if type(made) is float else made

    return compute


for _name in ("__lt__", "__le__", "__gt__", "__ge__"):
    setattr(UnknownNumber, _name, _compares(_name))
for _name in (
    *(f"__{side}{kind}__" for kind in ("add", "sub", "mul", "truediv") for side in ("", "r")),
    *("__pow__", "__rpow__", "__neg__", "__abs__"),
):
    setattr(UnknownNumber, _name, _computes(_name))
