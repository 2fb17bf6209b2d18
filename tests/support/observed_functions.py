"""Functions as a library writes them, to be observed; pytest compiles what is in test modules another way."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any


def everything(a: int, /, b: int = 2, *rest: int, c: int = 3, **more: int) -> tuple[Any, ...]:
    """Return all parameters."""
    return a, b, rest, c, more


def early(number: int) -> str:
    if number < 0:
        return "below"
    for one in range(number):
        if one == 3:
            return "three"
    with warnings.catch_warnings():
        if number == 1:
            return "one"
    if number == 2:
        return None  # type: ignore[return-value]
    try:
        return "tried"
    finally:
        finished.append(number)


finished: list[int] = []


def returns_nothing(value: int) -> None:
    finished.append(value)


def raises(value: Any) -> Any:
    # The failing part is in the middle of its line, for the columns.
    return ("before", value / 0, "after")


def raises_on_two_lines(value: Any) -> Any:
    return (
        "before",
        value / 0,
    )


def catches(value: Any) -> str:
    try:
        raises(value)
    except ZeroDivisionError:
        return traceback.format_exc()
    return ""


def recurses(depth: int = 0) -> int:
    """Return how deep it came."""
    try:
        return recurses(depth + 1)
    except RecursionError:
        return depth


def warns() -> None:
    warnings.warn("careful", stacklevel=1)


def warns_caller() -> None:
    warnings.warn("careful", stacklevel=2)


def callers_name() -> str:
    return sys._getframe(1).f_code.co_name


def asks_who_calls() -> str:
    return callers_name()


def inner_functions(value: int) -> list[int]:
    def doubled(one: int) -> int:
        return one * 2

    class Kept:
        def get(self) -> int:
            return value

    return [doubled(value), (lambda one: one + 1)(value), Kept().get()]


def closing() -> Any:
    number = 3

    def closure() -> int:
        return number

    return closure


class Base:
    def greet(self) -> str:
        return "base"


class Greeter(Base):
    def greet(self) -> str:
        """Return who greets."""
        return super().greet() + " and " + __class__.__name__  # type: ignore[name-defined]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


async def awaits() -> int:
    return 1


from_text: dict[str, Any] = {}
exec("def without_source(value):\n    return value\n", from_text)


a_lambda = lambda value: value  # noqa: E731


def with_a_default_function(x: int, key: Callable[[int], int] = lambda number: number + 1) -> int:
    """Python compiles the default before the function, as it does annotations since 3.14."""
    return key(x)


class WithADefaultFunction:
    """The same in a class."""

    def method(self, x: int, key: Callable[[int], int] = lambda number: number + 1) -> int:
        return key(x)
