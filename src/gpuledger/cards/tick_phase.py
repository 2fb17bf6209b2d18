"""When a GPU's energy counter ticks: learnt from ticks that were seen, so that few reads find the next.

The counter moves at the same moment of every period, over minutes (H200, bench/energy/nvml_calls.py), and a read of it
takes milliseconds. How long a period is, is a fact of the vendor. Once a tick was seen between two reads, the next ones
are known within what those reads took.
"""

from __future__ import annotations

from gpuledger.model.energy_window import EnergyCounter

CLOCK_FRAC = 40e-6
"""How exactly a period can be known at best: by so much clocks are put right."""

UNKNOWN_FRAC = 0.4
"""Ticks that can be anywhere in such a part of a period are not known."""

Span = tuple[int, int]
"""Not before and not after, Unix time in ns."""


class TickPhase:
    """What is known of one counter's ticks.

    Args:
        counter: How it moves.
    """

    def __init__(self, counter: EnergyCounter) -> None:
        self.counter = counter
        self._first: Span | None = None
        self._last: Span = (0, 0)
        self._count = 0
        self._period: Span = (counter.shortest_ns, counter.longest_ns)

    @property
    def is_confirmed(self) -> bool:
        """Return whether a tick was found where it had been expected."""
        return self._first is not None and self._count > 0

    def next_after(self, at_ns: int) -> Span | None:
        """Return between what times the first tick lies that is not over at ``at_ns``; None where it is not known."""
        return self._tick(self._count_to(at_ns))

    def last_before(self, at_ns: int) -> Span | None:
        """Return between what times the last tick lay that is over at ``at_ns``; None where it is not known."""
        return self._tick(self._count_to(at_ns) - 1)

    def _count_to(self, at_ns: int) -> int:
        """Return how many ticks after the last one seen the first lies that is not over at a moment."""
        return max((at_ns - self._last[1]) // self._period[1] + 1, 0)

    def _tick(self, count: int) -> Span | None:
        if self._first is None:
            return None
        least, most = self._period if count >= 0 else self._period[::-1]
        low_ns, high_ns = self._last[0] + count * least, self._last[1] + count * most
        return (low_ns, high_ns) if high_ns - low_ns <= UNKNOWN_FRAC * self.counter.period_ns else None

    def saw(self, after_ns: int, before_ns: int) -> Span:
        """Learn that one tick lay between two moments; return between what times it was."""
        seen = (after_ns, before_ns)
        known = self.next_after((after_ns + before_ns) // 2 - self.counter.shortest_ns // 2)
        if self._first is None or known is None or max(after_ns, known[0]) > min(before_ns, known[1]):
            self._first, self._last, self._count = seen, seen, 0
            self._period = (self.counter.shortest_ns, self.counter.longest_ns)
            return seen
        seen = (max(after_ns, known[0]), min(before_ns, known[1]))
        self._count += round((sum(seen) - sum(self._last)) / sum(self._period))
        self._last = seen
        if self._count:
            self._narrow(self._first, seen)
        return seen

    def forget(self) -> None:
        """Begin anew: the counter did not move where it was expected to."""
        self._first = None

    def _narrow(self, first: Span, last: Span) -> None:
        """Learn the period from the first and the last tick seen."""
        low_ns = max((last[0] - first[1]) // self._count, self.counter.shortest_ns)
        high_ns = min(-((first[0] - last[1]) // self._count), self.counter.longest_ns)
        least_ns = round(CLOCK_FRAC * self.counter.period_ns)
        spare_ns = max(least_ns - (high_ns - low_ns), 0) // 2
        self._period = (low_ns - spare_ns, high_ns + spare_ns)
