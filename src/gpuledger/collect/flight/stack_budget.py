"""The time that Python stacks of allocations may take after the recorded steps: a share of the program's time."""

from __future__ import annotations

from collections.abc import Callable

SHARE_FRAC = 0.005
"""Share of the program's time."""
FIRST_NS = 20_000_000
"""Time that may be spent at once in the beginning."""
MOST_NS = 100_000_000
"""Longest time that is saved up, for what a program does after a long training."""


class StackBudget:
    """Counts the time that may be spent.

    Args:
        clock: Returns a time in ns.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self.spent_ns = 0
        self._clock = clock
        self._left_ns = float(FIRST_NS)
        self._at_ns = clock()

    def left_ns(self) -> float:
        """Return the time that may be spent now, in ns; negative if more was spent than that."""
        now_ns = self._clock()
        self._left_ns = min(self._left_ns + SHARE_FRAC * (now_ns - self._at_ns), MOST_NS)
        self._at_ns = now_ns
        return self._left_ns

    def spend(self, time_ns: float) -> None:
        """Count a time in ns as spent."""
        self._left_ns -= time_ns
        self.spent_ns += round(time_ns)
