"""Edges of energy windows on one card, found at the next tick of its counter with two reads of it.

A read of the counter takes milliseconds and holds up every other reading of the card, from whatever process (H200). So
it is read where its ticks are known not to be: once before the next one and once after it; not before where the last
tick is the one before, as it is for whoever asks for edge after edge. Where the next tick is not known well enough, the
counter is asked again and again from where it can be, until it moves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

from gpuledger.cards.tick_phase import Span, TickPhase
from gpuledger.model.energy_window import TICK_JITTER_NS, TICK_NS, Edge

LIMIT_NS = 400_000_000
"""A counter that has not moved for so long stands still, or is not there."""

LOOK_NS = 500_000
"""How long the card is left alone between two reads where a tick is looked for."""

TIGHT_NS = 8_000_000
"""A tick that is known this well is not looked for: the counter is read after it. Reads that take long count more."""

WIDE_NS = TICK_NS // 6
"""A tick that lies between two looks so far apart is not taken where the next one can be: a processor may be short."""

MARGIN_NS = 2_000_000
"""How far reads stay away from where a tick can be."""

LATEST_NS = 1_000_000_000
"""Of an edge that is heard of so late, what the counter showed is not known any more."""

TYPICAL_READ_NS = 4_000_000
"""How long a read of the counter is taken to last before the first (H200)."""

LONGEST_READ_NS = TICK_NS // 2
"""However long reads take, one is not put off for longer: else there would be no room for it between two ticks."""

Keep = Callable[[Edge | None], None]


class Counted(Protocol):
    """What is asked of one card."""

    index: int
    ticks: TickPhase
    """What is known of when the counter moves."""

    def read_energy_mj(self) -> int | None:
        """Return the energy counter; None where it cannot be read."""

    def read_throttled_ns(self) -> int | None:
        """Return how long the power cap has held the clock down."""


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
        self._first: tuple[int, int] | None = None
        self._since_ns = 0
        self._looked_ns = 0
        self._trusts = False
        self._passed_over = False
        self._last: tuple[int, int] | None = None

    @property
    def read_ns(self) -> int:
        """Return how long the next read will take."""
        return self._counter_ns

    def want(self, at_ns: int, keep: Keep) -> None:
        """Ask for the edge at ``at_ns``, now or a moment ago; ``keep`` is given it, or None where there is none."""
        now_ns = self._clock()
        late_ns = now_ns - at_ns
        if late_ns > LATEST_NS:
            keep(None)
            return
        self._wanted.append((at_ns, late_ns if late_ns > WIDE_NS else 0, keep))
        if self.due_ns is None:
            self._passed_over = False
            self._begin(now_ns)

    def read(self) -> None:
        """Ask the card once."""
        began_ns = self._clock()
        if self._first is None and self._is_near_a_tick(began_ns):
            self._begin(began_ns)
            return
        energy_mj = self._card.read_energy_mj()
        ended_ns = self._clock()
        self._counter_ns = min((3 * self._counter_ns + ended_ns - began_ns) // 4, LONGEST_READ_NS)
        if energy_mj is None:
            self._settle(None)
        elif self._first is None:
            self._wait_for_tick((began_ns + ended_ns) // 2, energy_mj, began_ns)
        elif energy_mj == self._first[1]:
            self._look_again(began_ns, ended_ns)
        else:
            self._take(energy_mj, began_ns, ended_ns, *self._first)

    def _begin(self, now_ns: int) -> None:
        """Look for the next tick: from what the last one showed where it is the one before, else from a read."""
        self._first = None
        expected = self._card.ticks.next_after(now_ns)
        if expected is None or expected[0] > now_ns + self._counter_ns + MARGIN_NS:
            self.due_ns = now_ns
        else:
            self.due_ns = expected[1] + MARGIN_NS
        if self._last is not None and expected is not None and expected[0] - self._last[0] < 3 * TICK_NS // 2:
            self._wait_for_tick(self._last[0] + TICK_NS // 4, self._last[1], now_ns)

    def _is_near_a_tick(self, now_ns: int) -> bool:
        """Return whether a read begun now could be on either side of a tick."""
        expected = self._card.ticks.next_after(now_ns)
        return expected is not None and expected[0] < now_ns + self._counter_ns

    def _wait_for_tick(self, seen_ns: int, energy_mj: int, looked_ns: int) -> None:
        """Plan for the tick after a read: what the counter shows before it is known now."""
        now_ns = self._clock()
        self._first, self._since_ns, self._looked_ns = (seen_ns, energy_mj), now_ns, looked_ns
        expected = self._card.ticks.next_after(looked_ns)
        is_tight = expected is not None and expected[1] - expected[0] <= max(TIGHT_NS, 3 * self._counter_ns // 2)
        self._trusts = is_tight and self._card.ticks.is_confirmed
        if expected is None:
            self.due_ns = now_ns + LOOK_NS
        else:
            self.due_ns = max(expected[1] + MARGIN_NS if self._trusts else expected[0] - MARGIN_NS, now_ns)

    def _look_again(self, began_ns: int, ended_ns: int) -> None:
        """The counter has not moved: where it was to have moved it is not known any more when it does."""
        if self._trusts:
            self._distrust()
        self._looked_ns = began_ns
        if ended_ns - self._since_ns > LIMIT_NS:
            self._settle(None)
        else:
            self.due_ns = ended_ns + LOOK_NS

    def _take(self, energy_mj: int, began_ns: int, ended_ns: int, first_ns: int, first_mj: int) -> None:
        """The counter has moved since the read before: find out when it last did."""
        if self._trusts:
            tick, following = self._card.ticks.last_before(began_ns), self._card.ticks.next_after(began_ns)
            if tick is None or following is None or following[0] < ended_ns:  # it may have moved once more meanwhile
                self._read_once_more(began_ns, ended_ns, following)
                return
        else:
            gap_ns = ended_ns - self._looked_ns
            if gap_ns > WIDE_NS and not self._passed_over:
                self._passed_over = True
                self._wait_for_tick((began_ns + ended_ns) // 2, energy_mj, began_ns)
                return
            tick = self._card.ticks.saw(self._looked_ns, ended_ns)
        tick_ns = sum(tick) // 2
        self._last = (tick_ns, energy_mj)
        unsure_ns = (tick[1] - tick[0]) // 2 + TICK_JITTER_NS
        ticks = max(math.ceil((tick_ns - first_ns - unsure_ns) / TICK_NS), 1)
        self._settle(tick, energy_mj, (energy_mj - first_mj) / 1e3 / (ticks * TICK_NS / 1e9))

    def _read_once_more(self, began_ns: int, ended_ns: int, following: Span | None) -> None:
        """A read took so long that a tick can lie in it: read again after that one, unless that goes on and on."""
        if following is None or ended_ns - self._since_ns > LIMIT_NS:
            self._distrust()
            self._looked_ns, self.due_ns = began_ns, ended_ns
        else:
            self.due_ns = following[1] + MARGIN_NS

    def _distrust(self) -> None:
        """What was known of the ticks does not hold."""
        self._card.ticks.forget()
        self._trusts = False

    def _settle(self, tick: Span | None, energy_mj: int = 0, power_w: float = 0.0) -> None:
        """Give every edge asked for to whoever asked."""
        wanted, self._wanted, self.due_ns = self._wanted, [], None
        if tick is None:
            self._last = None
            for *_, keep in wanted:
                keep(None)
            return
        throttled_ns = self._card.read_throttled_ns()
        for at_ns, late_ns, keep in wanted:
            # Nobody knows the power of the time before an edge was heard of: it is stated as uncertain.
            keep(Edge(at_ns, sum(tick) // 2, energy_mj, tick[1] - tick[0] + 2 * late_ns, power_w, throttled_ns))
