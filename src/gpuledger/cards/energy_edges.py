"""Read the energy counter of one GPU at a given time (an edge of an energy window).

The counter changes only at ticks (every 100 ms on an H200). A read takes milliseconds and blocks all other reads of the
GPU, from any process. So the counter is read at most twice per edge: before the next tick and after it. If the previous
tick was observed, its value is known and the first read is not needed. If the time of the next tick is not known well
enough, the counter is polled from its earliest possible time until it changes.

Energy between the edge and the tick after it is corrected for with the mean power of that period.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from gpuledger.cards.card import Card
from gpuledger.cards.tick_phase import Span
from gpuledger.model.energy_window import Edge

LIMIT_PERIODS = 4
"""Number of periods after which a counter without a change counts as not working."""

LOOK_FRAC = 0.005
"""Pause between two polls for a tick, as a fraction of a period."""

TIGHT_FRAC = 0.08
"""Largest uncertainty of a tick, as a fraction of a period, for which no polling is needed. Slow reads raise it."""

WIDE_FRAC = 1 / 6
"""Gap between two polls, as a fraction of a period, above which a tick's time is ambiguous. The next one is used."""

MARGIN_FRAC = 0.02
"""Distance of reads from the possible times of a tick, as a fraction of a period."""

LONGEST_READ_FRAC = 0.5
"""Upper limit of the assumed duration of a read, as a fraction of a period, so that it fits between two ticks."""

LATEST_NS = 1_000_000_000
"""An edge that is requested later than this has no known counter value."""

Keep = Callable[[Edge | None], None]


class EdgeFinder:
    """Finds edges on one GPU. Call :meth:`read` at ``due_ns``.

    Args:
        card: The GPU.
        clock_ns: Returns Unix time in ns.
    """

    def __init__(self, card: Card, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.due_ns: int | None = None
        """Time of the next :meth:`read`, in Unix ns; None if no edge is requested."""
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
        self._first: tuple[Span, int] | None = None
        self._since_ns = 0
        self._looked_ns = 0
        self._trusts = False
        self._passed_over = False
        self._last: tuple[int, int] | None = None

    @property
    def read_ns(self) -> int:
        """Return the expected duration of the next read, in ns."""
        return self._read_ns

    def want(self, at_ns: int, keep: Keep) -> None:
        """Request the edge at ``at_ns``, a time just before now. Calls ``keep`` with it, or with None."""
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
        """Read the counter once."""
        began_ns = self._clock()
        # The value of a read during a tick can be from before or after it, so wait until the tick is over.
        if self._first is None and self._is_near_a_tick(began_ns):
            self._begin(began_ns)
            return
        energy_mj = self._card.read_energy_mj()
        ended_ns = self._clock()
        # A moving mean: reads take milliseconds, and longer while other processes read the same GPU.
        self._read_ns = min((3 * self._read_ns + ended_ns - began_ns) // 4, self._longest_read_ns)
        if energy_mj is None:
            self._settle(None)
        elif self._first is None:
            self._wait_for_tick((began_ns, ended_ns), energy_mj, began_ns)
        elif energy_mj == self._first[1]:
            self._look_again(energy_mj, began_ns, ended_ns)
        else:
            self._take(energy_mj, began_ns, ended_ns, *self._first)

    def _begin(self, now_ns: int) -> None:
        """Start with the value of the previous tick if it was observed, or with a read."""
        self._first = None
        expected = self._card.ticks.next_after(now_ns)
        if expected is None or expected[0] > now_ns + self._read_ns + self._margin_ns:
            self.due_ns = now_ns
        else:
            self.due_ns = expected[1] + self._margin_ns
        period_ns = self._counter.period_ns
        # The previous tick was observed. A read now would return its value, so none is needed.
        if self._last is not None and expected is not None and expected[0] - self._last[0] < 3 * period_ns // 2:
            seen_ns = self._last[0] + period_ns // 4
            self._wait_for_tick((seen_ns, seen_ns), self._last[1], min(now_ns, expected[0]))

    def _is_near_a_tick(self, now_ns: int) -> bool:
        """Return whether a tick can occur during a read that starts now."""
        expected = self._card.ticks.next_after(now_ns)
        return expected is not None and expected[0] < now_ns + self._read_ns

    def _wait_for_tick(self, seen: Span, energy_mj: int, looked_ns: int) -> None:
        """Schedule the read after the next tick. The counter had the value before it during ``seen``."""
        now_ns = self._clock()
        self._first, self._since_ns, self._looked_ns = (seen, energy_mj), now_ns, looked_ns
        expected = self._card.ticks.next_after(looked_ns)
        is_tight = expected is not None and expected[1] - expected[0] <= max(self._tight_ns, 3 * self._read_ns // 2)
        self._trusts = is_tight and self._card.ticks.is_confirmed
        if expected is None:
            self.due_ns = now_ns + self._look_ns
        else:
            self.due_ns = max(expected[1] + self._margin_ns if self._trusts else expected[0] - self._margin_ns, now_ns)

    def _look_again(self, energy_mj: int, began_ns: int, ended_ns: int) -> None:
        """Handle a read without a change: poll again. If a change was predicted, the prediction was wrong."""
        if self._trusts:
            self._distrust()
        self._first, self._looked_ns = ((began_ns, ended_ns), energy_mj), began_ns
        if ended_ns - self._since_ns > self._limit_ns:
            self._settle(None)
        else:
            self.due_ns = ended_ns + self._look_ns

    def _take(self, energy_mj: int, began_ns: int, ended_ns: int, first: Span, first_mj: int) -> None:
        """Handle a read with a change: determine the time of the last tick."""
        if self._trusts:
            tick, following = self._card.ticks.last_before(began_ns), self._card.ticks.next_after(began_ns)
            if (
                tick is None or following is None or following[0] < ended_ns
            ):  # it may have changed again during the read
                self._read_once_more((began_ns, ended_ns), energy_mj, following)
                return
        else:
            # The value is that of the last tick before the read, which is at most a period older.
            after_ns = max(self._looked_ns, began_ns - self._counter.longest_ns - self._counter.jitter_ns)
            # If the possible times of the tick are far apart, take the next tick instead, once. On a busy machine,
            # doing so every time would never end.
            if ended_ns - after_ns > self._wide_ns and not self._passed_over:
                self._passed_over = True
                self._wait_for_tick((began_ns, ended_ns), energy_mj, began_ns)
                return
            tick = self._card.ticks.saw(after_ns, ended_ns)
        is_narrow = tick[1] - tick[0] <= self._wide_ns
        self._last = (sum(tick) // 2, energy_mj) if is_narrow else None
        fewest, most = self._ticks_between(first, tick)
        highest_w, lowest_w = (
            (energy_mj - first_mj) / 1e3 / (ticks * self._counter.period_ns / 1e9) for ticks in (fewest, most)
        )
        self._settle(tick, energy_mj, (highest_w + lowest_w) / 2, (highest_w - lowest_w) / 2)

    def _ticks_between(self, first: Span, tick: Span) -> tuple[int, int]:
        """Return the fewest and most ticks after a read during ``first``, up to and with the one in ``tick``.

        A busy machine delays reads, so that more than one tick can have passed.
        """
        counter = self._counter
        most = max(math.ceil((tick[1] - first[0]) / counter.longest_ns), 1)
        fewest = max(math.ceil((tick[0] - first[1] - counter.jitter_ns) / counter.period_ns), 1)
        return min(fewest, most), most

    def _read_once_more(self, read: Span, energy_mj: int, following: Span | None) -> None:
        """Read again after a tick that can have occurred during a slow read, up to a limit."""
        if following is None or read[1] - self._since_ns > self._limit_ns:
            self._distrust()
            self._wait_for_tick(read, energy_mj, read[0])
        else:
            self.due_ns = following[1] + self._margin_ns

    def _distrust(self) -> None:
        """Discard the known times of ticks."""
        self._card.ticks.forget()
        self._trusts = False

    def _settle(self, tick: Span | None, energy_mj: int = 0, power_w: float = 0.0, unsure_w: float = 0.0) -> None:
        """Call back for every requested edge."""
        wanted, self._wanted, self.due_ns = self._wanted, [], None
        if tick is None:
            self._last = None
            for *_, keep in wanted:
                keep(None)
            return
        throttled_ns = self._card.read_throttled_ns()
        for at_ns, late_ns, keep in wanted:
            # The power between a late edge and its request is unknown, so that time counts as uncertainty.
            reading_ns = tick[1] - tick[0] + 2 * late_ns
            tick_ns = sum(tick) // 2
            keep(Edge(at_ns, tick_ns, energy_mj, reading_ns, power_w, throttled_ns, None, self._counter, unsure_w))


def find_edge(
    at_ns: int,
    card: Card,
    clock_ns: Callable[[], int] = time.time_ns,
    sleep_s: Callable[[float], None] = time.sleep,
) -> Edge | None:
    """Return the edge at ``at_ns``, a time just before now; None if the counter does not exist or change.

    Waits for the counter's next tick.
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
