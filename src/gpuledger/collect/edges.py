"""Edges of energy windows on one card, found at the next tick of its counter with few reads of it.

A read takes 3 to 4 ms and holds up every other reading of the card (H200). So the counter is read once when an edge is
asked for, and then only around where its next tick is expected: the ticks keep their beat. All edges that are asked for
between two ticks are found at the same one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuledger.model.energy_window import TICK_JITTER_NS, TICK_NS, Edge

LIMIT_NS = 400_000_000
"""A counter that has not moved for so long stands still, or is not there."""

WIDE_NS = TICK_NS // 6
"""A tick that lies between two reads so far apart is not taken: the next one is."""

LATEST_NS = 1_000_000_000
"""Of an edge that is heard of so late, what the counter showed is not known any more."""

DRIFT_FRAC = 5e-4
"""How far the beat may be off, as a share of the time since the last tick that was seen."""

TYPICAL_READ_NS = 4_000_000
"""How long a read is taken to last before the first (H200)."""

Keep = Callable[[Edge | None], None]


class EdgeFinder:
    """Finds edges on one card; :meth:`read` is called when ``due_ns`` has come.

    Args:
        read_energy_mj: The counter in mJ; None where it cannot be read.
        read_throttled_ns: How long the power cap has held the clock down.
        clock_ns: Unix time.
        delay_ns: How long after ``due_ns`` a read may come.
    """

    def __init__(
        self,
        read_energy_mj: Callable[[], int | None],
        read_throttled_ns: Callable[[], int | None],
        clock_ns: Callable[[], int] = time.time_ns,
        delay_ns: int = 0,
    ) -> None:
        self.due_ns: int | None = None
        """When the counter is to be read next; None while no edge is asked for."""
        self.read_ns = TYPICAL_READ_NS
        """How long a read takes."""
        self._read = read_energy_mj
        self._read_throttled = read_throttled_ns
        self._clock = clock_ns
        self._wanted: list[tuple[int, int, Keep]] = []
        self._first: tuple[int, int] | None = None
        self._last = (0, 0)
        self._moves = 0
        self._delay_ns = delay_ns
        self._beat = Beat()

    def want(self, at_ns: int, keep: Keep) -> None:
        """Ask for the edge at ``at_ns``, now or a moment ago; ``keep`` is given it, or None where there is none."""
        late_ns = self._clock() - at_ns
        if late_ns > LATEST_NS:
            keep(None)
            return
        self._wanted.append((at_ns, late_ns if late_ns > WIDE_NS else 0, keep))
        if self.due_ns is None:
            self.due_ns, self._first, self._moves = at_ns, None, 0

    def learn(self) -> None:
        """Find one tick, so that the next is expected at its place."""
        self.want(self._clock(), lambda _: None)
        while self.due_ns is not None:
            self.read()

    def read(self) -> None:
        """Read the counter once."""
        before_ns = self._clock()
        energy_mj = self._read()
        after_ns = self._clock()
        if energy_mj is None:
            self._settle(None)
            return
        self.read_ns = (3 * self.read_ns + after_ns - before_ns) // 4
        seen_ns = (before_ns + after_ns) // 2
        last_ns, last_mj = self._last
        self._last = (seen_ns, energy_mj)
        if self._first is None:
            self._first = self._last
        elif energy_mj != last_mj:
            self._moves += 1
            tick_ns, gap_ns = (last_ns + seen_ns) // 2, seen_ns - last_ns
            if gap_ns <= WIDE_NS or self._moves > 1:
                self._beat.hear(tick_ns, gap_ns // 2)
                self._settle(tick_ns, energy_mj, gap_ns)
                return
            self._beat = Beat(tick_ns, gap_ns // 2)
        elif seen_ns - self._first[0] > LIMIT_NS:
            self._settle(None)
            return
        self.due_ns = self._beat.next_look_ns(after_ns, self._delay_ns)

    def _settle(self, tick_ns: int | None, energy_mj: int = 0, gap_ns: int = 0) -> None:
        """Give every edge asked for to whoever asked."""
        wanted, self._wanted, self.due_ns = self._wanted, [], None
        if tick_ns is None or self._first is None:
            for *_, keep in wanted:
                keep(None)
            return
        power_w = (energy_mj - self._first[1]) / 1e3 / (self._moves * TICK_NS / 1e9)
        throttled_ns = self._read_throttled()
        for at_ns, late_ns, keep in wanted:
            # Nobody knows the power of the time before an edge was heard of: it is stated as uncertain.
            keep(Edge(at_ns, tick_ns, energy_mj, gap_ns + 2 * late_ns, power_w, throttled_ns))


class Beat:
    """Where a counter's next tick is expected, from one that was seen within ``half_ns`` of ``tick_ns``."""

    def __init__(self, tick_ns: int | None = None, half_ns: int = 0) -> None:
        self._tick_ns = self._anchor_ns = tick_ns
        self._half_ns = half_ns
        self._period_ns = float(TICK_NS)

    def hear(self, tick_ns: int, half_ns: int) -> None:
        """Take in a tick; ticks that lie far apart tell the beat better than the usual one does."""
        if self._anchor_ns is None:
            self._anchor_ns = tick_ns
        beats = round((tick_ns - self._anchor_ns) / self._period_ns)
        if beats >= 10:
            period_ns = (tick_ns - self._anchor_ns) / beats
            if abs(period_ns - TICK_NS) < TICK_NS / 100:
                self._period_ns = period_ns
        self._tick_ns, self._half_ns = tick_ns, half_ns

    def next_look_ns(self, now_ns: int, early_ns: int) -> int:
        """Return when to read next, so much before a tick can come; now while one can come at any moment."""
        if self._tick_ns is None:
            return now_ns
        since_ns = now_ns - self._tick_ns
        margin_ns = self._half_ns + TICK_JITTER_NS + since_ns * DRIFT_FRAC
        phase_ns = since_ns % self._period_ns
        wait_ns = self._period_ns - phase_ns - margin_ns - early_ns
        if wait_ns < 0 or (phase_ns < margin_ns and since_ns > self._period_ns):
            return now_ns
        return now_ns + round(wait_ns)
