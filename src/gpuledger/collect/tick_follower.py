"""Follows a card's energy counter from tick to tick, asking it only near where the next tick is expected.

A read takes 3 to 4 ms and holds the driver (H200); two or three a tick are enough to see one within a read's length.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuledger.model.energy_window import TICK_NS, Tick

_ASKED_FROM = 0.92
"""Share of the time between two ticks after which the next is asked for."""

_SHORTEST_NS = 5_000_000
"""No counter is taken to tick more often."""

STANDS_STILL_NS = 1_000_000_000
"""A counter that has not moved for so long is asked no more than ten times a second."""


class TickFollower:
    """Finds the ticks of one counter; :meth:`ask` is called when ``due_ns`` has come.

    Args:
        read_energy_mj: The counter in mJ; None where it cannot be read.
        read_throttled_ns: How long the power cap has held the clock down.
        clock_ns: Unix time.
    """

    def __init__(
        self,
        read_energy_mj: Callable[[], int | None],
        read_throttled_ns: Callable[[], int | None],
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.due_ns = 0
        self.readable = True
        self._read = read_energy_mj
        self._read_throttled = read_throttled_ns
        self._clock = clock_ns
        self._value: int | None = None
        self._seen_ns = 0
        self._exact_ns: int | None = None
        self._asked = 0
        self._still_since_ns = 0

    def ask(self) -> Tick | None:
        """Return the tick that this read saw; None where the counter has not moved, or is not there."""
        before_ns = self._clock()
        value = self._read()
        now_ns = (before_ns + self._clock()) // 2
        if value is None:
            self.readable = False
            return None
        last, last_seen_ns = self._value, self._seen_ns
        self._value, self._seen_ns = value, now_ns
        self._asked += 1
        if last is None or value == last:
            self._still_since_ns = self._still_since_ns or now_ns
            if now_ns - self._still_since_ns > STANDS_STILL_NS:
                self.due_ns = now_ns + TICK_NS
            return None
        tick_ns = (last_seen_ns + now_ns) // 2
        self._plan(tick_ns)
        return Tick(tick_ns, value, now_ns - last_seen_ns, self._read_throttled())

    def _plan(self, tick_ns: int) -> None:
        """Say when to ask next: near the next tick where the last two were seen exactly, else from now on.

        The first read after a pause may find that the tick has passed: when, is not known then.
        """
        exact_ns = tick_ns if self._asked > 1 else None
        self.due_ns = 0
        if exact_ns is not None and self._exact_ns is not None:
            self.due_ns = tick_ns + round(max(exact_ns - self._exact_ns, _SHORTEST_NS) * _ASKED_FROM)
        self._exact_ns, self._asked, self._still_since_ns = exact_ns, 0, 0
