"""Attributes that are replaced while a virtual GPU is in place, and put back afterwards."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Patches:
    """Replaces attributes; :meth:`undo` puts everything back in reverse order."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def put(self, place: Any, name: str, value: Any) -> None:
        """Set ``place.name``, remembering what was there itself (not inherited)."""
        self._before.append((place, name, vars(place).get(name, _ABSENT)))
        setattr(place, name, value)

    def undo(self) -> None:
        """Put back what was there."""
        while self._before:
            place, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(place, name)
            else:
                setattr(place, name, value)
