"""Public names of a package that are imported when they are first asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(package: str, modules: Mapping[str, str], before: str | None = None) -> Callable[[str], object]:
    """Return what a package sets as its ``__getattr__``.

    Args:
        package: its ``__name__``.
        modules: for each public name, the module that holds it.
        before: a module that is imported before the first of them.
    """

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if before is not None:
            importlib.import_module(before)
        value: object = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
