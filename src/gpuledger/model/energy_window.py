"""Energy of a window, from tick to tick of the GPU's counter: the arithmetic, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WITHOUT_ENERGY = "Energy was not measured: the program uses no GPU that reports its energy."
"""The note of a run without an energy measurement."""

NOTES_WITHOUT_ENERGY = ("Energy was not measured:", "No joules")
"""How notes on missing energy begin; the second of runs of earlier versions."""

ENERGY_MARKER = "energy-pass.json"
"""In a rank's directory while its energy pass is open: tells whoever reads the GPUs that it is time, and which."""

METERED_CARDS = "energy-cards.json"
"""In the run's directory while somebody looks for open passes: the GPUs whose energy can be read."""

ENERGY_JOURNAL = "energy"
"""Where the readings of the GPUs in energy passes go, beside the other readings of the GPUs."""

ENERGY_PASS = "energy"  # noqa: S105 - a name, not a password
"""Name of the energy pass's window."""


_LONGEST_PERIOD_NS = 1_000_000_000_000


@dataclass(frozen=True)
class EnergyCounter:
    """How a GPU's energy counter moves: a fact of its vendor.

    ``period_ns`` lies between two ticks, never less than ``shortest_ns`` and never more than ``longest_ns`` on average;
    one tick can stand ``jitter_ns`` from its time. A read of the counter takes about ``read_ns``.
    """

    period_ns: int
    shortest_ns: int
    longest_ns: int
    jitter_ns: int
    read_ns: int

    @staticmethod
    def of_facts(facts: Any) -> EnergyCounter:
        """Return the counter that a journal's facts describe; NVML's where they do not."""
        try:
            found = EnergyCounter(**{name: int(value) for name, value in facts.items()})
        except (AttributeError, TypeError, ValueError, OverflowError):
            return NVML_COUNTER
        is_possible = 0 < found.period_ns < _LONGEST_PERIOD_NS and 0 <= found.jitter_ns < _LONGEST_PERIOD_NS
        return found if is_possible else NVML_COUNTER


NVML_COUNTER = EnergyCounter(100_100_000, 99_950_000, 100_150_000, 1_900_000, 4_000_000)
"""NVIDIA's (H200); runs that do not describe their counter have it."""


@dataclass(frozen=True)
class Tick:
    """One move of a GPU's counter: when, what it then showed, and how long the read took that saw it."""

    t_ns: int
    energy_mj: int
    reading_ns: int
    throttled_ns: int | None = None


@dataclass(frozen=True)
class Edge:
    """One edge of a window: the moment asked for, the next tick, and the power between the two.

    Where ``off_w`` is None, ``power_w`` is the mean from the tick before to the next; else it is what the ticks around
    tell, and ``off_w`` how far off it can be. ``reading_ns`` is how exactly the tick's time is known.
    """

    at_ns: int
    tick_ns: int
    energy_mj: int
    reading_ns: int
    power_w: float
    throttled_ns: int | None
    off_w: float | None = None
    counter: EnergyCounter = NVML_COUNTER


@dataclass(frozen=True)
class WindowEnergy:
    """``energy_j`` is None where the window has fewer than two ticks: it is below the counter's resolution."""

    start_ns: int
    end_ns: int
    energy_j: float | None
    uncertainty_j: float | None
    ticks: int
    throttled_ns: int | None


def edge_at(ticks: Sequence[Tick], at_ns: int, counter: EnergyCounter = NVML_COUNTER) -> Edge | None:
    """Return the edge at ``at_ns`` from the ticks of ``counter`` around it; None with fewer than two ticks.

    It rests on the next tick, and on the last one where the readings end before that. Loads begin and end with windows:
    where the power before the tick before and after the next differ, it is taken to have gone from the one to the other
    at once, at the moment that gives the energy between the two ticks.
    """
    if len(ticks) < 2:
        return None
    last = next((place for place, tick in enumerate(ticks) if place and tick.t_ns >= at_ns), len(ticks) - 1)
    before, tick = ticks[last - 1], ticks[last]
    mean_w = power_w = _power_w(before, tick)
    if 1 < last < len(ticks) - 1 and before.t_ns < at_ns < tick.t_ns:
        earlier_w, later_w = _power_w(ticks[last - 2], before), _power_w(tick, ticks[last + 1])
        power_w = _power_after(at_ns - before.t_ns, tick.t_ns - before.t_ns, (earlier_w, mean_w, later_w))
    off_w = None if power_w == mean_w else abs(power_w - mean_w) / 2
    return Edge(at_ns, tick.t_ns, tick.energy_mj, tick.reading_ns, power_w, tick.throttled_ns, off_w, counter)


def _power_w(before: Tick, tick: Tick) -> float:
    """Return the mean power between two ticks."""
    return (tick.energy_mj - before.energy_mj) / 1e3 / ((tick.t_ns - before.t_ns) / 1e9)


def _power_after(at_ns: int, length_ns: int, powers_w: tuple[float, float, float]) -> float:
    """Return the mean power from ``at_ns`` to the end of an interval, given those before, in and after it."""
    earlier_w, mean_w, later_w = powers_w
    if not min(earlier_w, later_w) < mean_w < max(earlier_w, later_w):
        return mean_w
    turn_ns = length_ns * (mean_w - later_w) / (earlier_w - later_w)
    earlier_ns = max(turn_ns - at_ns, 0.0)
    left_ns = length_ns - at_ns
    return (earlier_w * earlier_ns + later_w * (left_ns - earlier_ns)) / left_ns


def measure_window(start: Edge, end: Edge) -> WindowEnergy:
    """Return the energy between two edges.

    The uncertainty is what the jitter of the two ticks and of the reads that saw them can make at the power there, and
    what the power between an edge and the ticks around it can: at most what it would be if the window's mean held up to
    the edge and the rest of that period lay outside.

    Source: the GPU's energy counter.
    """
    period_s, jitter_ns = start.counter.period_ns / 1e9, start.counter.jitter_ns
    ticks = max(round((end.tick_ns - start.tick_ns) / start.counter.period_ns), 0)
    seconds = (end.tick_ns - start.tick_ns) / 1e9
    counted_j = (end.energy_mj - start.energy_mj) / 1e3
    throttled_ns = None
    if start.throttled_ns is not None and end.throttled_ns is not None:
        throttled_ns = end.throttled_ns - start.throttled_ns
    if ticks < 2 or counted_j < 0 or end.at_ns <= start.at_ns:
        return WindowEnergy(start.at_ns, end.at_ns, None, None, ticks, throttled_ns)
    before_s, after_s = (start.tick_ns - start.at_ns) / 1e9, (end.tick_ns - end.at_ns) / 1e9
    energy_j = counted_j + before_s * start.power_w - after_s * end.power_w
    mean_w = counted_j / seconds
    spread_j = _spread_j(start, before_s, before_s, mean_w) + _spread_j(end, after_s, period_s - after_s, mean_w)
    jitter_j = [(jitter_ns + edge.reading_ns / 2) / 1e9 * edge.power_w for edge in (start, end)]
    uncertainty_j = (jitter_j[0] ** 2 + jitter_j[1] ** 2) ** 0.5 + spread_j
    return WindowEnergy(start.at_ns, end.at_ns, max(energy_j, 0.0), uncertainty_j, ticks, throttled_ns)


def _spread_j(edge: Edge, to_tick_s: float, inside_s: float, mean_w: float) -> float:
    """Return what the power between an edge and its tick can be off by; ``inside_s`` is the window's part of a period.

    The window's part cannot hold more than all of the period did.
    """
    if edge.off_w is not None:
        return abs(to_tick_s) * edge.off_w
    outside_s = edge.counter.period_ns / 1e9 - inside_s
    spread_j = max(inside_s, 0.0) * abs(edge.power_w - mean_w)
    return spread_j if mean_w < edge.power_w or outside_s < 0 else min(spread_j, outside_s * edge.power_w)
