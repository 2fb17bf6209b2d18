"""Reuse distance: number of bytes accessed between two uses of the same memory.

Memory with a reuse distance below the cache size is still in the cache. The distance selects between the hot and the
rotating measurement of an operator.
"""

from __future__ import annotations

from collections.abc import Iterable


class ReuseMeter:
    """Counts accessed bytes, and stores the count at the last access of each storage."""

    def __init__(self) -> None:
        self._touched_bytes = 0
        self._last: dict[int, int] = {}

    def meet(self, read: Iterable[tuple[int, int]], written: Iterable[tuple[int, int]]) -> float | None:
        """Return a call's reuse distance in bytes, and count its own accesses.

        Args:
            read: ``(storage, bytes)`` of each input.
            written: ``(storage, bytes)`` of each result.

        Returns:
            The median distance of the input bytes; None if no input was accessed before.
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
    """Return the weighted median."""
    half = sum(weight for _, weight in known) / 2
    passed = 0
    for value, weight in known:
        passed += weight
        if passed >= half:
            return float(value)
    return None
