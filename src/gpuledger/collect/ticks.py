"""Energy of a window, from tick to tick of the card's counter.

The counter moves every 100 ms, and reading it takes milliseconds. So it is not read all the time: at each edge of a
window it is read until it moves, and what lies between the edge and that tick is added, or taken off, at the mean power
of the 100 ms that the edge lies in: the step the counter made.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

TICK_LIMIT_S = 0.4
"""A counter that has not moved for so long stands still, or is not there."""

TICK_NS = 100_100_000
"""How often the counter moves (H200)."""

TICK_JITTER_NS = 1_900_000
"""How far a tick was seen to stand from its 100 ms (H200)."""


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


def find_edge(
    at_ns: int,
    read_energy_mj: Callable[[], int | None],
    read_throttled_ns: Callable[[], int | None],
    clock_ns: Callable[[], int] = time.time_ns,
) -> Edge | None:
    """Return the edge at ``at_ns``, now or a moment ago; None where the counter does not move or is not there."""
    first = read_energy_mj()
    limit_ns = clock_ns() + int(TICK_LIMIT_S * 1e9)
    while first is not None and clock_ns() < limit_ns:
        before_ns = clock_ns()
        energy_mj = read_energy_mj()
        after_ns = clock_ns()
        if energy_mj is None:
            return None
        if energy_mj != first:
            tick_ns = (before_ns + after_ns) // 2
            power_w = (energy_mj - first) / 1e3 / (TICK_NS / 1e9)
            return Edge(at_ns, tick_ns, energy_mj, after_ns - before_ns, power_w, read_throttled_ns())
    return None


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
    spread_j = [before_s * abs(before_w - mean_w) / 2, after_s * abs(after_w - mean_w) / 2]
    uncertainty_j = ((jitter_s[0] * before_w) ** 2 + (jitter_s[1] * after_w) ** 2) ** 0.5 + sum(spread_j)
    return WindowEnergy(start.at_ns, end.at_ns, max(energy_j, 0.0), uncertainty_j, ticks, throttled_ns)
