"""Replace attributes while a simulated GPU is in use, and restore them afterwards."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

_ABSENT = object()


class Patches:
    """Replaces attributes; :meth:`undo` restores them in reverse order."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def put(self, place: Any, name: str, value: Any) -> None:
        """Set ``place.name`` and remember its own (not inherited) value."""
        self._before.append((place, name, vars(place).get(name, _ABSENT)))
        setattr(place, name, value)

    def undo(self) -> None:
        """Restore the previous values."""
        while self._before:
            place, name, value = self._before.pop()
            with suppress(ReferenceError):  # a weak reference to an object that is gone
                if value is _ABSENT:
                    delattr(place, name)
                else:
                    setattr(place, name, value)
