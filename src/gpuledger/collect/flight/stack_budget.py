"""The time that Python stacks of allocations may take after the recorded steps: a share of the program's time."""

from __future__ import annotations

from collections.abc import Callable

SHARE_FRAC, GROWING_FRAC = 0.002, 0.005
"""Share of the program's time; the second one while its memory grows."""
FIRST_NS = 20_000_000
"""Time that may be spent at once in the beginning."""
RESERVED_NS = 10_000_000
"""Time that is left for whole steps, and not spent on the ends of short ones; none in steps that are measured."""
MOST_NS = 100_000_000
"""Longest time that is saved up, for what a program does after a long training."""
MEASURED_FRAC, MEASURED_MOST_NS = 0.001, 2_500_000
"""The share, and the longest time that is saved up, in steps whose time and energy are measured."""
SETTLING_NS = 250_000_000
"""Time before such steps, in which power and clock settle and nothing is measured yet."""


class StackBudget:
    """Counts the time that may be spent.

    Args:
        clock: Returns a time in ns.
        is_measured: Whether the time and the energy of the program's steps are measured soon.
    """

    def __init__(self, clock: Callable[[], int], *, is_measured: bool = False) -> None:
        self.spent_ns = 0
        self.is_growing = False
        """Whether the memory of the program grows."""
        self._clock, self._is_measured = clock, is_measured
        self._left_ns = float(FIRST_NS)
        self._at_ns = clock()
        self._measured_from_ns = self._at_ns + SETTLING_NS if is_measured else None

    def left_for_ends_ns(self) -> float:
        """Return the time that may be spent on the ends of short steps, in ns.

        No whole steps have stacks while steps are measured, so no time is left for them then.
        """
        return self.left_ns() - (0 if self._is_measured else RESERVED_NS)

    def left_ns(self) -> float:
        """Return the time that may be spent now, in ns; negative if more was spent than that."""
        now_ns = self._clock()
        is_measured = self._measured_from_ns is not None and now_ns >= self._measured_from_ns
        most_ns = MEASURED_MOST_NS if is_measured else MOST_NS
        share_frac = MEASURED_FRAC if self._is_measured else GROWING_FRAC if self.is_growing else SHARE_FRAC
        self._left_ns = min(self._left_ns + share_frac * (now_ns - self._at_ns), most_ns)
        self._at_ns = now_ns
        return self._left_ns

    def spend(self, time_ns: float) -> None:
        """Count a time in ns as spent."""
        self._left_ns -= time_ns
        self.spent_ns += round(time_ns)
