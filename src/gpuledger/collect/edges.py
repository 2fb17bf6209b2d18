"""Edges of energy windows on one card, found at the next tick of its counter with two reads of it.

A read of the counter takes milliseconds and holds up every other reading of the card, from whatever process (H200). The
card's power is renewed with each tick of the counter, and reading that takes microseconds: so the power is asked until
it moves, and the counter only then. Once before, when the edge is asked for: what it shows then is what the power in
between is taken from; not where the last tick is the one before, as it is for whoever asks for edge after edge. Where
the power does not move, the counter itself is asked until it does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

from gpuledger.model.energy_window import TICK_JITTER_NS, TICK_NS, Edge

LIMIT_NS = 400_000_000
"""A counter that has not moved for so long stands still, or is not there."""

STUCK_NS = 5 * TICK_NS // 2
"""Power that has not moved for so long does not tell the ticks: the counter itself is asked."""

LOOK_NS = 2_000_000
"""How often the power is asked while a tick is looked for."""

WIDE_NS = TICK_NS // 6
"""A tick that lies between two looks so far apart is not taken where the next one can be: a processor may be short."""

FRESH_NS = TICK_NS * 9 // 10
"""How long after a tick the counter is taken to show that tick."""

LATEST_NS = 1_000_000_000
"""Of an edge that is heard of so late, what the counter showed is not known any more."""

ASKED_FROM = 0.92
"""Share of the time between two ticks after which the next one is looked for."""

TYPICAL_READ_NS = 4_000_000
"""How long a read of the counter is taken to last before the first (H200)."""

Keep = Callable[[Edge | None], None]


class Counted(Protocol):
    """What is asked of one card."""

    index: int

    def read_energy_mj(self) -> int | None:
        """Return the energy counter; None where it cannot be read."""

    def read_throttled_ns(self) -> int | None:
        """Return how long the power cap has held the clock down."""

    def read_beat(self) -> int | None:
        """Return what moves when the counter ticks and is read in microseconds; None where nothing is."""


class EdgeFinder:
    """Finds edges on one card; :meth:`read` is called when ``due_ns`` has come.

    Args:
        card: The card.
        clock_ns: Unix time.
    """

    def __init__(self, card: Counted, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.due_ns: int | None = None
        """When :meth:`read` is to be called next; None while no edge is asked for."""
        self._card = card
        self._clock = clock_ns
        self._wanted: list[tuple[int, int, Keep]] = []
        self._counter_ns = TYPICAL_READ_NS
        self._look: Callable[[], int | None] = card.read_beat
        self._first: tuple[int, int] | None = None
        self._looked: tuple[int, int | None] = (0, None)
        self._tick: tuple[int, int] | None = None
        self._passed_over = False
        self._last: tuple[int, int] | None = None
        self._period_ns = 0

    @property
    def read_ns(self) -> int:
        """Return how long the next read will take."""
        is_quick = self._first is not None and self._tick is None and self._look != self._card.read_energy_mj
        return 0 if is_quick else self._counter_ns

    def want(self, at_ns: int, keep: Keep) -> None:
        """Ask for the edge at ``at_ns``, now or a moment ago; ``keep`` is given it, or None where there is none."""
        now_ns = self._clock()
        late_ns = now_ns - at_ns
        if late_ns > LATEST_NS:
            keep(None)
            return
        self._wanted.append((at_ns, late_ns if late_ns > WIDE_NS else 0, keep))
        if self.due_ns is None:
            self._begin(now_ns)

    def read(self) -> None:
        """Ask the card once: for the counter where an edge was asked for or a tick was seen, else for the power."""
        if self._first is None:
            self._read_first()
        elif self._tick is None:
            self._look_for_tick(*self._first)
        else:
            self._read_tick(*self._tick)

    def _begin(self, now_ns: int) -> None:
        """Look for the next tick: from what the last one showed, where it is the one before."""
        self._passed_over = False
        if self._last is not None and now_ns - self._last[0] < FRESH_NS:
            self._first, self._tick = self._last, None
            self.due_ns = max(now_ns, self._last[0] + round(self._period_ns * ASKED_FROM))
            return
        self._look = self._card.read_beat
        self._start_again(now_ns)

    def _distrust(self) -> None:
        """The power does not tell the ticks: ask the counter itself."""
        self._look = self._card.read_energy_mj
        self._start_again(self._clock())

    def _start_again(self, due_ns: int) -> None:
        self._first = self._tick = None
        self.due_ns = due_ns

    def _read_counter(self) -> tuple[int, int | None]:
        """Return the middle of a read, and what it showed."""
        before_ns = self._clock()
        energy_mj = self._card.read_energy_mj()
        after_ns = self._clock()
        self._counter_ns = (3 * self._counter_ns + after_ns - before_ns) // 4
        return (before_ns + after_ns) // 2, energy_mj

    def _read_first(self) -> None:
        """Learn what the counter shows before the tick that is looked for, unless one comes meanwhile."""
        before = self._card.read_beat()
        seen_ns, energy_mj = self._read_counter()
        if energy_mj is None:
            self._settle(None)
            return
        if before is None or self._look == self._card.read_energy_mj:
            self._look, beat = self._card.read_energy_mj, energy_mj
        else:
            found = self._card.read_beat()
            if found != before:
                self._start_again(self._clock() + LOOK_NS)
                return
            beat = before
        now_ns = self._clock()
        self._first, self._looked, self.due_ns = (seen_ns, energy_mj), (now_ns, beat), now_ns + LOOK_NS

    def _look_for_tick(self, first_ns: int, first_mj: int) -> None:
        begun_ns = self._clock()
        beat = self._look()
        now_ns = self._clock()
        (looked_ns, known), self._looked = self._looked, (begun_ns, beat)
        self.due_ns = now_ns + LOOK_NS
        counts = self._look == self._card.read_energy_mj
        if beat != known and beat is not None:
            gap_ns = now_ns - looked_ns
            if gap_ns > WIDE_NS and not self._passed_over:
                self._passed_over = True
                return
            self._tick, self.due_ns = ((looked_ns + now_ns) // 2, gap_ns), now_ns
            if counts:
                self._settle(self._tick, beat, first_ns, first_mj)
        elif counts and now_ns - first_ns > LIMIT_NS:
            self._settle(None)
        elif not counts and now_ns - first_ns > STUCK_NS:
            self._distrust()

    def _read_tick(self, tick_ns: int, gap_ns: int) -> None:
        """Read what the counter shows since the tick, unless it has moved on, or has not moved with the power."""
        assert self._first is not None
        first_ns, first_mj = self._first
        if self._clock() - tick_ns > FRESH_NS:
            self._start_again(self._clock())
            return
        _, energy_mj = self._read_counter()
        if energy_mj is None:
            self._settle(None)
        elif energy_mj == first_mj:
            self._distrust()
        else:
            self._settle((tick_ns, gap_ns), energy_mj, first_ns, first_mj)

    def _settle(self, tick: tuple[int, int] | None, energy_mj: int = 0, first_ns: int = 0, first_mj: int = 0) -> None:
        """Give every edge asked for to whoever asked."""
        wanted, self._wanted, self.due_ns = self._wanted, [], None
        last, self._last = self._last, None if tick is None else (tick[0], energy_mj)
        if tick is None:
            for *_, keep in wanted:
                keep(None)
            return
        tick_ns, gap_ns = tick
        follows, span_ns = last == (first_ns, first_mj), tick_ns - first_ns
        self._period_ns = span_ns if follows and gap_ns <= WIDE_NS and not self._passed_over else 0
        unsure_ns = TICK_NS // 2 if follows else TICK_JITTER_NS + gap_ns // 2
        ticks = max(math.ceil((span_ns - unsure_ns) / TICK_NS), 1)
        power_w = (energy_mj - first_mj) / 1e3 / (ticks * TICK_NS / 1e9)
        throttled_ns = self._card.read_throttled_ns()
        for at_ns, late_ns, keep in wanted:
            # Nobody knows the power of the time before an edge was heard of: it is stated as uncertain.
            keep(Edge(at_ns, tick_ns, energy_mj, gap_ns + 2 * late_ns, power_w, throttled_ns))
