"""Edges of energy windows on one GPU, found at the next tick of its counter with two reads of it.

A read of the counter takes milliseconds and holds up every other reading of the GPU, from whatever process (H200). So
it is read where its ticks are known not to be: once before the next one and once after it; not before where the last
tick is the one before, as it is for whoever asks for edge after edge. Where the next tick is not known well enough, the
counter is asked again and again from where it can be, until it moves.

What lies between an edge of a window and the tick after it is added, or taken off, at the mean power of the period that
the edge lies in: the step the counter made.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from gpuledger.cards.card import Card
from gpuledger.cards.tick_phase import Span
from gpuledger.model.energy_window import Edge

LIMIT_PERIODS = 4
"""A counter that has not moved for so many periods stands still, or is not there."""

LOOK_FRAC = 0.005
"""Of a period: how long the GPU is left alone between two reads where a tick is looked for."""

TIGHT_FRAC = 0.08
"""Of a period: a tick that is known this well is not looked for, the counter is read after it. Reads that take long
count more."""

WIDE_FRAC = 1 / 6
"""Of a period: a tick that lies between two looks so far apart is ambiguous, and skipped where the next one can be."""

MARGIN_FRAC = 0.02
"""Of a period: how far reads stay away from where a tick can be."""

LONGEST_READ_FRAC = 0.5
"""Of a period: however long reads take, one is not put off for longer, or it has no room between two ticks."""

LATEST_NS = 1_000_000_000
"""Of an edge that is heard of so late, what the counter showed is not known any more."""

Keep = Callable[[Edge | None], None]


class EdgeFinder:
    """Finds edges on one GPU; :meth:`read` is called when ``due_ns`` has come.

    Args:
        card: The GPU.
        clock_ns: Unix time.
    """

    def __init__(self, card: Card, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.due_ns: int | None = None
        """When :meth:`read` is to be called next; None while no edge is asked for."""
        self._card = card
        self._clock = clock_ns
        self._wanted: list[tuple[int, int, Keep]] = []
        counter = card.ticks.counter
        self._counter = counter
        self._limit_ns = LIMIT_PERIODS * counter.period_ns
        fractions = LOOK_FRAC, TIGHT_FRAC, WIDE_FRAC, MARGIN_FRAC, LONGEST_READ_FRAC
        lengths_ns = [round(part * counter.period_ns) for part in fractions]
        self._look_ns, self._tight_ns, self._wide_ns, self._margin_ns, self._longest_read_ns = lengths_ns
        self._read_ns = counter.read_ns
        self._first: tuple[int, int] | None = None
        self._since_ns = 0
        self._looked_ns = 0
        self._trusts = False
        self._passed_over = False
        self._last: tuple[int, int] | None = None

    @property
    def read_ns(self) -> int:
        """Return how long the next read will take."""
        return self._read_ns

    def want(self, at_ns: int, keep: Keep) -> None:
        """Ask for the edge at ``at_ns``, now or a moment ago; ``keep`` is given it, or None where there is none."""
        now_ns = self._clock()
        late_ns = now_ns - at_ns
        if late_ns > LATEST_NS:
            keep(None)
            return
        self._wanted.append((at_ns, late_ns if late_ns > self._wide_ns else 0, keep))
        if self.due_ns is None:
            self._passed_over = False
            self._begin(now_ns)

    def read(self) -> None:
        """Ask the GPU once."""
        began_ns = self._clock()
        # A read that straddles a tick cannot tell which side its value is of: wait until the tick is over.
        if self._first is None and self._is_near_a_tick(began_ns):
            self._begin(began_ns)
            return
        energy_mj = self._card.read_energy_mj()
        ended_ns = self._clock()
        # A moving mean: reads take milliseconds, and longer while other processes ask the same GPU.
        self._read_ns = min((3 * self._read_ns + ended_ns - began_ns) // 4, self._longest_read_ns)
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
        if expected is None or expected[0] > now_ns + self._read_ns + self._margin_ns:
            self.due_ns = now_ns
        else:
            self.due_ns = expected[1] + self._margin_ns
        period_ns = self._counter.period_ns
        # The last tick is the one before the next: its value is what a read now would show, so none is needed.
        if self._last is not None and expected is not None and expected[0] - self._last[0] < 3 * period_ns // 2:
            self._wait_for_tick(self._last[0] + period_ns // 4, self._last[1], now_ns)

    def _is_near_a_tick(self, now_ns: int) -> bool:
        """Return whether a read begun now could be on either side of a tick."""
        expected = self._card.ticks.next_after(now_ns)
        return expected is not None and expected[0] < now_ns + self._read_ns

    def _wait_for_tick(self, seen_ns: int, energy_mj: int, looked_ns: int) -> None:
        """Plan for the tick after a read: what the counter shows before it is known now."""
        now_ns = self._clock()
        self._first, self._since_ns, self._looked_ns = (seen_ns, energy_mj), now_ns, looked_ns
        expected = self._card.ticks.next_after(looked_ns)
        is_tight = expected is not None and expected[1] - expected[0] <= max(self._tight_ns, 3 * self._read_ns // 2)
        self._trusts = is_tight and self._card.ticks.is_confirmed
        if expected is None:
            self.due_ns = now_ns + self._look_ns
        else:
            self.due_ns = max(expected[1] + self._margin_ns if self._trusts else expected[0] - self._margin_ns, now_ns)

    def _look_again(self, began_ns: int, ended_ns: int) -> None:
        """The counter has not moved: where it was to have moved it is not known any more when it does."""
        if self._trusts:
            self._distrust()
        self._looked_ns = began_ns
        if ended_ns - self._since_ns > self._limit_ns:
            self._settle(None)
        else:
            self.due_ns = ended_ns + self._look_ns

    def _take(self, energy_mj: int, began_ns: int, ended_ns: int, first_ns: int, first_mj: int) -> None:
        """The counter has moved since the read before: find out when it last did."""
        if self._trusts:
            tick, following = self._card.ticks.last_before(began_ns), self._card.ticks.next_after(began_ns)
            if tick is None or following is None or following[0] < ended_ns:  # it may have moved once more meanwhile
                self._read_once_more(began_ns, ended_ns, following)
                return
        else:
            gap_ns = ended_ns - self._looked_ns
            # The tick lies somewhere between two reads. If these are far apart, its time is ambiguous: take the next
            # tick instead, once; a second time would put the edge off for ever on a busy machine.
            if gap_ns > self._wide_ns and not self._passed_over:
                self._passed_over = True
                self._wait_for_tick((began_ns + ended_ns) // 2, energy_mj, began_ns)
                return
            tick = self._card.ticks.saw(self._looked_ns, ended_ns)
        tick_ns = sum(tick) // 2
        self._last = (tick_ns, energy_mj)
        # More than one tick may have passed since the first read; the step is divided among them for the power.
        unsure_ns = (tick[1] - tick[0]) // 2 + self._counter.jitter_ns
        ticks = max(math.ceil((tick_ns - first_ns - unsure_ns) / self._counter.period_ns), 1)
        self._settle(tick, energy_mj, (energy_mj - first_mj) / 1e3 / (ticks * self._counter.period_ns / 1e9))

    def _read_once_more(self, began_ns: int, ended_ns: int, following: Span | None) -> None:
        """A read took so long that a tick can lie in it: read again after that one, unless that goes on and on."""
        if following is None or ended_ns - self._since_ns > self._limit_ns:
            self._distrust()
            self._looked_ns, self.due_ns = began_ns, ended_ns
        else:
            self.due_ns = following[1] + self._margin_ns

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
            reading_ns = tick[1] - tick[0] + 2 * late_ns
            keep(Edge(at_ns, sum(tick) // 2, energy_mj, reading_ns, power_w, throttled_ns, counter=self._counter))


def find_edge(
    at_ns: int,
    card: Card,
    clock_ns: Callable[[], int] = time.time_ns,
    sleep_s: Callable[[float], None] = time.sleep,
) -> Edge | None:
    """Return the edge at ``at_ns``, now or a moment ago; None where the counter does not move or is not there.

    It waits for the counter's next tick.
    """
    found: list[Edge | None] = []
    finder = EdgeFinder(card, clock_ns)
    finder.want(at_ns, found.append)
    while finder.due_ns is not None:
        early_ns = finder.due_ns - clock_ns()
        if early_ns > 0:
            sleep_s(early_ns / 1e9)
        finder.read()
    return found[0]
