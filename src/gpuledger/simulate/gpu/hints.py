"""User functions with the result shapes of operators that cannot be simulated."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Shape = TypeVar("Shape", bound=Callable[..., object])
_FUNCTIONS: dict[str, Callable[..., Any]] = {}
_LISTENERS: list[Callable[[str, Callable[..., Any]], None]] = []


def fake_output(name: str) -> Callable[[Shape], Shape]:
    """Return a decorator for a function that returns results of the same shape as an operator, without values.

    Only estimates use it; normal runs do not change. For an operator of ``torch.ops``, you can also register a fake
    kernel with ``torch.library.register_fake``.

    Args:
        name: ``"library::operator"``, or ``"package.module.function"`` for a function of a C++ extension.

    Example:
        >>> import gpuledger
        >>> @gpuledger.fake_output("fast::attention")
        ... def attention(query, key, value):
        ...     return query.new_empty(query.shape)
    """

    def keep(function: Shape) -> Shape:
        _FUNCTIONS[name] = function
        for listen in _LISTENERS:
            listen(name, function)
        return function

    return keep


def function_for(func: Any) -> Callable[..., Any] | None:
    """Return the user's function for an operator of ``torch.ops``; None if there is none."""
    return _FUNCTIONS.get(func._schema.name) if _FUNCTIONS else None


@contextmanager
def listening(listen: Callable[[str, Callable[..., Any]], None]) -> Iterator[None]:
    """Call ``listen`` with the registered functions, and with those that are registered inside this context."""
    for name, function in _FUNCTIONS.items():
        listen(name, function)
    _LISTENERS.append(listen)
    try:
        yield
    finally:
        _LISTENERS.remove(listen)


def place_of(name: str) -> tuple[Any, str] | None:
    """Return the module and attribute of a Python-level function; None for an operator.

    Raises:
        ImportError: there is no such module.
    """
    module, dot, attribute = name.rpartition(".")
    return (importlib.import_module(module), attribute) if dot and "::" not in name else None
