"""Reuse distance: how many bytes were touched between two uses of the same bytes.

What was touched fewer bytes ago than a cache holds is still in it. The distance decides whether an operator's hot or
its rotating measurement is added up.
"""

from __future__ import annotations

from collections.abc import Iterable


class ReuseMeter:
    """Counts touched bytes, and remembers at which count each storage was touched last."""

    def __init__(self) -> None:
        self._touched_bytes = 0
        self._last: dict[int, int] = {}

    def meet(self, read: Iterable[tuple[int, int]], written: Iterable[tuple[int, int]]) -> float | None:
        """Return a call's reuse distance in bytes, and count what it touches.

        Args:
            read: ``(storage, bytes)`` of each input.
            written: ``(storage, bytes)`` of each result.

        Returns:
            The distance that half of the input bytes do not exceed; None where none was touched before.
        """
        inputs, results = dict(read), dict(written)
        known = sorted(
            (self._touched_bytes - self._last[storage], size_bytes)
            for storage, size_bytes in inputs.items()
            if storage in self._last
        )
        self._touched_bytes += sum({**inputs, **results}.values())
        for storage in (*inputs, *results):
            self._last[storage] = self._touched_bytes
        return _middle(known)


def _middle(known: list[tuple[int, int]]) -> float | None:
    """Return the median of values, each with its weight, in order of the values."""
    half = sum(weight for _, weight in known) / 2
    passed = 0
    for value, weight in known:
        passed += weight
        if passed >= half:
            return float(value)
    return None
