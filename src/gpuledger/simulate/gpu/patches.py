"""Replace attributes while a simulated GPU is in use, and restore them afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

_ABSENT = object()


class Patches:
    """Replaces attributes; :meth:`undo` restores them in reverse order."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []
        self._awaited: dict[str, Callable[[Patches, ModuleType], None]] = {}

    def put(self, place: Any, name: str, value: Any) -> None:
        """Set ``place.name`` and remember its own (not inherited) value."""
        self._before.append((place, name, vars(place).get(name, _ABSENT)))
        setattr(place, name, value)

    def when_imported(self, name: str, patch: Callable[[Patches, ModuleType], None]) -> None:
        """Call ``patch`` with a module of Python code once it is imported, or now if it is."""
        if not self._awaited:
            plain = SourceFileLoader.exec_module

            def exec_module(loader: SourceFileLoader, module: ModuleType) -> None:
                plain(loader, module)
                if module.__name__ in self._awaited:
                    self._awaited[module.__name__](self, module)

            self.put(SourceFileLoader, "exec_module", exec_module)
        self._awaited[name] = patch
        if name in sys.modules:
            patch(self, sys.modules[name])

    def undo(self) -> None:
        """Restore the previous values."""
        self._awaited.clear()
        while self._before:
            place, name, value = self._before.pop()
            with suppress(ReferenceError):  # a weak reference to an object that is gone
                if value is _ABSENT:
                    delattr(place, name)
                else:
                    setattr(place, name, value)
