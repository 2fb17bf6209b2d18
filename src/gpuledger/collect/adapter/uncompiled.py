"""Our own functions are none of the compiler's business.

While compiled code runs, Dynamo tries to compile every Python frame it meets, ours among them where a graph broke. It
is told to run them as they are. They are still traced through where they are called inside a graph: nothing breaks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from gpuledger.collect.adapter import torch_private

PACKAGE = "gpuledger."
_WRAPS_THE_PROGRAM_S = "gpuledger.collect.attribution.scopes._wrapped"
"""Makes the functions that stand in for decorated ones: those are compiled with what they decorate."""


def keep_uncompiled() -> None:
    """Have every function of the package that is loaded run as it is."""
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGE):
            for code in _codes(vars(module), name):
                torch_private.never_compile(code)


def _codes(names: dict[str, Any], module_name: str) -> Iterator[CodeType]:
    for value in list(names.values()):
        if isinstance(value, type) and value.__module__ == module_name:
            yield from _codes(dict(vars(value)), module_name)
            continue
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(function, FunctionType) and function.__module__ == module_name:
            if f"{module_name}.{function.__qualname__}" == _WRAPS_THE_PROGRAM_S:
                continue
            yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions made inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
