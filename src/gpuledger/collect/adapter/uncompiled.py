"""Exclude gpuledger's own functions from torch.compile.

While compiled code runs, Dynamo tries to compile every Python frame that it meets, including gpuledger's after a graph
break. These functions are marked to run eagerly. If they are called inside a graph, they are still traced, so they
cause no graph break. Nor is the standard library compiled where observers call it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.guard import is_our_file

PACKAGE = "gpuledger."
_CACHED = type(functools.cache(len))
_WRAPS_THE_PROGRAM_S = "gpuledger.collect.attribution.scopes._wrapped"
"""Creates the functions that replace decorated ones. They are compiled together with the function that they wrap."""
_CALLS_NOTHING_OF_THE_PROGRAM = {"Observers._enter", "Observers._leave", "Observers._fail", "OptimizerHook._run"}
"""Functions through which gpuledger is called. What they call is not compiled, either."""

_marked: set[str] = set()
"""Names of modules with functions that are marked."""


def keep_uncompiled() -> None:
    """Mark every function of the package to run eagerly that was loaded since the last call."""
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGE) and name not in _marked:
            for code in _codes(vars(module), name):
                torch_private.never_compile(code, with_callees=code.co_qualname in _CALLS_NOTHING_OF_THE_PROGRAM)
            _marked.add(name)


def _codes(names: dict[str, Any], module_name: str) -> Iterator[CodeType]:
    for value in list(names.values()):
        if isinstance(value, type) and value.__module__ == module_name:
            yield from _codes(dict(vars(value)), module_name)
            continue
        function = _without_decorators(value.fget if isinstance(value, property) else getattr(value, "__func__", value))
        if function is None or function.__module__ != module_name:
            continue
        if f"{module_name}.{function.__qualname__}" != _WRAPS_THE_PROGRAM_S:
            yield from _with_inner(function.__code__)


def _without_decorators(value: Any) -> FunctionType | None:
    """Return a function of the package from inside its decorators; None for anything else.

    The function that ``contextlib.contextmanager`` returns shares its code with every function of the program that has
    the same decorator.
    """
    while isinstance(value, FunctionType | _CACHED):
        if isinstance(value, FunctionType) and is_our_file(value.__code__):
            return value
        value = getattr(value, "__wrapped__", None)
    return None


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code object and those of its nested functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
