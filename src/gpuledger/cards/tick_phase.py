"""Predict when a GPU's energy counter is updated (a tick), so that few reads find the next tick.

The counter is updated at the same phase of every period for minutes (H200, bench/energy/nvml_calls.py), and a read
takes milliseconds. The length of a period depends on the vendor. Once a tick was observed between two reads, the
following ticks are known to within the duration of those reads.
"""

from __future__ import annotations

from gpuledger.model.energy_window import EnergyCounter

CLOCK_FRAC = 40e-6
"""The best relative accuracy of a known period: clocks are adjusted by this much."""

UNKNOWN_FRAC = 0.4
"""Ticks with an uncertainty above this fraction of a period count as unknown."""

Span = tuple[int, int]
"""Earliest and latest possible time, in Unix ns."""


class TickPhase:
    """The known ticks of one counter.

    Args:
        counter: How it is updated.
    """

    def __init__(self, counter: EnergyCounter) -> None:
        self.counter = counter
        self._first: Span | None = None
        self._last: Span = (0, 0)
        self._count = 0
        self._period: Span = (counter.shortest_ns, counter.longest_ns)

    @property
    def is_confirmed(self) -> bool:
        """Return whether a tick was found at a predicted time."""
        return self._first is not None and self._count > 0

    def next_after(self, at_ns: int) -> Span | None:
        """Return the time span of the first tick that is not over at ``at_ns``; None if unknown."""
        return self._tick(self._count_to(at_ns))

    def last_before(self, at_ns: int) -> Span | None:
        """Return the time span of the last tick that is over at ``at_ns``; None if unknown."""
        return self._tick(self._count_to(at_ns) - 1)

    def _count_to(self, at_ns: int) -> int:
        """Return the number of ticks from the last observed one to the first that is not over at ``at_ns``."""
        return max((at_ns - self._last[1]) // self._period[1] + 1, 0)

    def _tick(self, count: int) -> Span | None:
        if self._first is None:
            return None
        least, most = self._period if count >= 0 else self._period[::-1]
        low_ns, high_ns = self._last[0] + count * least, self._last[1] + count * most
        return (low_ns, high_ns) if high_ns - low_ns <= UNKNOWN_FRAC * self.counter.period_ns else None

    def saw(self, after_ns: int, before_ns: int) -> Span:
        """Record that one tick lay between two times. Return its time span.

        If two of the predicted ticks could be that one, nothing is recorded, and the span is the whole time.
        """
        seen = (after_ns, before_ns)
        known = self.next_after(after_ns - 1)
        if self._first is None or known is None or known[0] > before_ns:
            self._first, self._last, self._count = seen, seen, 0
            self._period = (self.counter.shortest_ns, self.counter.longest_ns)
            return seen
        following = self.next_after(known[1])
        if following is None or following[0] <= before_ns:
            return seen
        seen = (max(after_ns, known[0]), min(before_ns, known[1]))
        self._count += round((sum(seen) - sum(self._last)) / sum(self._period))
        self._last = seen
        if self._count:
            self._narrow(self._first, seen)
        return seen

    def forget(self) -> None:
        """Start again, because the counter was not updated at a predicted time."""
        self._first = None

    def _narrow(self, first: Span, last: Span) -> None:
        """Update the period from the first and the last observed tick."""
        low_ns = max((last[0] - first[1]) // self._count, self.counter.shortest_ns)
        high_ns = min(-((first[0] - last[1]) // self._count), self.counter.longest_ns)
        least_ns = round(CLOCK_FRAC * self.counter.period_ns)
        spare_ns = max(least_ns - (high_ns - low_ns), 0) // 2
        self._period = (low_ns - spare_ns, high_ns + spare_ns)
