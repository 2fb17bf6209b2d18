"""What a user says of operators and functions that cannot be followed: the shape of their results."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Shape = TypeVar("Shape", bound=Callable[..., object])
_TOLD: dict[str, Callable[..., Any]] = {}
_LISTENERS: list[Callable[[str, Callable[..., Any]], None]] = []


def fake_output(name: str) -> Callable[[Shape], Shape]:
    """Return a decorator for a function that makes what an operator or function would return, without its values.

    It matters to estimates alone; where a program runs, nothing changes. An operator of ``torch.ops`` may as well have
    a fake kernel of its own (``torch.library.register_fake``).

    Args:
        name: ``"library::operator"``, or ``"package.module.function"`` for a function of a C++ extension.

    Example:
        >>> import gpuledger
        >>> @gpuledger.fake_output("fast::attention")
        ... def attention(query, key, value):
        ...     return query.new_empty(query.shape)
    """

    def keep(function: Shape) -> Shape:
        _TOLD[name] = function
        for listen in _LISTENERS:
            listen(name, function)
        return function

    return keep


def told_operator(func: Any) -> Callable[..., Any] | None:
    """Return what was told of an operator of ``torch.ops``; None where nothing was."""
    return _TOLD.get(func._schema.name) if _TOLD else None


@contextmanager
def heard(listen: Callable[[str, Callable[..., Any]], None]) -> Iterator[None]:
    """Call ``listen`` with everything that was told, and for as long as this lasts with what is being told."""
    for name, function in _TOLD.items():
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
