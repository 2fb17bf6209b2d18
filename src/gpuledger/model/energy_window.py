"""Energy of a window, from tick to tick of the card's counter: the arithmetic, without a card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

ENERGY_MARKER = "energy-pass.json"
"""In a rank's directory while its energy pass is open: tells whoever reads the cards that it is time, and which."""

METERED_CARDS = "energy-cards.json"
"""In the run's directory while somebody looks for open passes: the cards whose energy can be read."""

ENERGY_JOURNAL = "energy"
"""Where the readings of the cards in energy passes go, beside the other readings of the cards."""

ENERGY_PASS = "energy"  # noqa: S105 - a name, not a password
"""Name of the energy pass's window."""

TICK_NS = 100_100_000
"""How often the counter moves (H200)."""

TICK_JITTER_NS = 1_900_000
"""How far a tick was seen to stand from its 100 ms (H200)."""


@dataclass(frozen=True)
class Tick:
    """One move of a card's counter: when, what it then showed, and how long the read took that saw it."""

    t_ns: int
    energy_mj: int
    reading_ns: int
    throttled_ns: int | None = None


@dataclass(frozen=True)
class Edge:
    """One edge of a window: the moment asked for, the next tick, and the mean power between the tick before and it.

    ``reading_ns`` is how long the read took that saw the tick.
    """

    at_ns: int
    tick_ns: int
    energy_mj: int
    reading_ns: int
    power_w: float
    throttled_ns: int | None


@dataclass(frozen=True)
class WindowEnergy:
    """``energy_j`` is None where the window has fewer than two ticks: it is below the counter's resolution."""

    start_ns: int
    end_ns: int
    energy_j: float | None
    uncertainty_j: float | None
    ticks: int
    throttled_ns: int | None


def edge_at(ticks: Sequence[Tick], at_ns: int) -> Edge | None:
    """Return the edge at ``at_ns`` from the ticks around it; None with fewer than two ticks.

    It rests on the next tick, and on the last one where the readings end before that.
    """
    if len(ticks) < 2:
        return None
    before, tick = next(((a, b) for a, b in pairwise(ticks) if b.t_ns >= at_ns), (ticks[-2], ticks[-1]))
    power_w = (tick.energy_mj - before.energy_mj) / 1e3 / ((tick.t_ns - before.t_ns) / 1e9)
    return Edge(at_ns, tick.t_ns, tick.energy_mj, tick.reading_ns, power_w, tick.throttled_ns)


def measure_window(start: Edge, end: Edge) -> WindowEnergy:
    """Return the energy between two edges.

    The uncertainty is what the jitter of the two ticks and of the reads that saw them, and half of what lies between
    an edge and its tick, can make at the power there.

    Source: NVML's energy counter.
    """
    ticks = max(round((end.tick_ns - start.tick_ns) / TICK_NS), 0)
    seconds = (end.tick_ns - start.tick_ns) / 1e9
    counted_j = (end.energy_mj - start.energy_mj) / 1e3
    throttled_ns = None
    if start.throttled_ns is not None and end.throttled_ns is not None:
        throttled_ns = end.throttled_ns - start.throttled_ns
    if ticks < 2 or counted_j < 0 or end.at_ns <= start.at_ns:
        return WindowEnergy(start.at_ns, end.at_ns, None, None, ticks, throttled_ns)
    mean_w = counted_j / seconds
    before_w, after_w = start.power_w, end.power_w
    before_s, after_s = (start.tick_ns - start.at_ns) / 1e9, (end.tick_ns - end.at_ns) / 1e9
    energy_j = counted_j + before_s * before_w - after_s * after_w
    jitter_s = [(TICK_JITTER_NS + edge.reading_ns / 2) / 1e9 for edge in (start, end)]
    spread_j = [abs(before_s * (before_w - mean_w)) / 2, abs(after_s * (after_w - mean_w)) / 2]
    uncertainty_j = ((jitter_s[0] * before_w) ** 2 + (jitter_s[1] * after_w) ** 2) ** 0.5 + sum(spread_j)
    return WindowEnergy(start.at_ns, end.at_ns, max(energy_j, 0.0), uncertainty_j, ticks, throttled_ns)
