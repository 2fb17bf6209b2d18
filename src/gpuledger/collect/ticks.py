"""Energy of a window, from tick to tick of the card's counter.

The counter moves every 100 ms, and reading it takes milliseconds. So it is not read all the time: at each edge of a
window it is read until it moves, and what lies between the edge and that tick is added, or taken off, at the mean power
of the 100 ms that the edge lies in: the step the counter made.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuledger.model.energy_window import TICK_NS, Edge, WindowEnergy, measure_window

__all__ = ["TICK_NS", "Edge", "WindowEnergy", "find_edge", "measure_window"]

TICK_LIMIT_S = 0.4
"""A counter that has not moved for so long stands still, or is not there."""


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
