"""How much CPU time a search at the end of a step may take. Whatever can be long looks at the clock in between."""

from __future__ import annotations

from time import thread_time_ns

CHECK_EVERY = 64
"""Number of objects between two looks at the clock, which takes as long as a look at some objects."""


class OutOfTimeError(Exception):
    """The time of a search is over. Does not leave the flight recorder."""


class TimeLimit:
    """CPU time in ns that the calling thread may use from now on."""

    def __init__(self, budget_ns: int) -> None:
        self._started_ns = thread_time_ns()
        self._until_ns = self._started_ns + budget_ns

    @property
    def used_ns(self) -> int:
        """Return the CPU time in ns since the start."""
        return thread_time_ns() - self._started_ns

    @property
    def is_over(self) -> bool:
        """Return whether the time is over."""
        return thread_time_ns() > self._until_ns

    def check(self) -> None:
        """Look at the clock.

        Raises:
            OutOfTimeError: The time is over.
        """
        if self.is_over:
            raise OutOfTimeError

    def shorten(self, by_ns: int) -> None:
        """Keep some of the time for what comes afterwards."""
        self._until_ns -= by_ns
