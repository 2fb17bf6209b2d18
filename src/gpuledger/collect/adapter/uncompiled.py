"""Exclude gpuledger's own functions from torch.compile.

While compiled code runs, Dynamo tries to compile every Python frame that it meets, including gpuledger's after a graph
break. These functions are marked to run eagerly. If they are called inside a graph, they are still traced, so they
cause no graph break. Nor is the standard library compiled where observers call it. Functions of torch that only a
recorded program calls are marked as well.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from gpuledger.collect.adapter import dynamo
from gpuledger.collect.adapter.guard import is_our_file
from gpuledger.collect.adapter.program_objects import items_of

PACKAGE = "gpuledger."
_CACHED = type(functools.cache(len))
_WRAPS_THE_PROGRAM_S = "gpuledger.collect.attribution.scopes._wrapped"
"""Creates the functions that replace decorated ones. They are compiled together with the function that they wrap."""
_CALLS_NOTHING_OF_THE_PROGRAM = {"Observers._enter", "Observers._leave", "Observers._fail", "OptimizerHook._run"}
"""Functions through which gpuledger is called. What they call is not compiled, either."""
_CALLS_DISPATCH_MODES = (
    "torch._ops",
    "torch.jit._builtins",
    *(f"torch._library.{name}" for name in ("effects", "fake_impl", "simple_registry", "utils")),
)
"""Modules of torch with the functions that call a dispatch mode, that look up its operator, and that call it.

Dynamo compiles none of them. Without a dispatch mode, a program does not call all of them.
"""

_marked: set[str] = set()
"""Names of modules with functions that are marked."""


def keep_uncompiled() -> None:
    """Mark every function of the package to run eagerly that was loaded since the last call."""
    for name, module in items_of(sys.modules):
        if name.startswith(PACKAGE) and name not in _marked:
            for code in _codes(vars(module), name, is_our_file):
                dynamo.never_compile(code, with_callees=code.co_qualname in _CALLS_NOTHING_OF_THE_PROGRAM)
            _marked.add(name)
        elif name in _CALLS_DISPATCH_MODES and name not in _marked:
            for code in _codes(vars(module), name, partial(_is_of_file, module.__file__)):
                dynamo.never_compile(code)
            _marked.add(name)


def _is_of_file(file: str | None, code: CodeType) -> bool:
    return code.co_filename == file


def _codes(names: dict[str, Any], module_name: str, belongs: Callable[[CodeType], bool]) -> Iterator[CodeType]:
    for value in list(names.values()):
        if isinstance(value, type) and value.__module__ == module_name:
            yield from _codes(dict(vars(value)), module_name, belongs)
            continue
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        function = _without_decorators(function, belongs)
        if function is None or function.__module__ != module_name:
            continue
        if f"{module_name}.{function.__qualname__}" != _WRAPS_THE_PROGRAM_S:
            yield from _with_inner(function.__code__)


def _without_decorators(value: Any, belongs: Callable[[CodeType], bool]) -> FunctionType | None:
    """Return a function from inside its decorators, if its code belongs to the package; None for anything else.

    The function that ``contextlib.contextmanager`` returns shares its code with every function of the program that has
    the same decorator.
    """
    while isinstance(value, FunctionType | _CACHED):
        if isinstance(value, FunctionType) and belongs(value.__code__):
            return value
        value = getattr(value, "__wrapped__", None)
    return None


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code object and those of its nested functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
