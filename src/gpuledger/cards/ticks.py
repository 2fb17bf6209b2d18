"""Energy of a window, from tick to tick of the card's counter.

What lies between an edge of the window and the tick after it is added, or taken off, at the mean power of the 100 ms
that the edge lies in: the step the counter made.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuledger.cards.edges import Counted, EdgeFinder
from gpuledger.model.energy_window import TICK_NS, Edge, WindowEnergy, measure_window

__all__ = ["TICK_NS", "Counted", "Edge", "WindowEnergy", "find_edge", "measure_window"]


def find_edge(
    at_ns: int,
    card: Counted,
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
