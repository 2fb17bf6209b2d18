"""Energy of an interval from the GPU's energy counter: the arithmetic, without a GPU.

A tick is an update of the counter; an edge is one end of the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WITHOUT_ENERGY = "Energy was not measured: the program uses no GPU that reports its energy."
"""The note of a run without an energy measurement."""

NOTES_WITHOUT_ENERGY = ("Energy was not measured:", "No joules")
"""Prefixes of notes about missing energy. The second is from runs of earlier versions."""

ENERGY_MARKER = "energy-pass.json"
"""File in a rank's directory during its energy measurement. It lists the GPUs that must be read."""

METERED_CARDS = "energy-cards.json"
"""File in the run's directory while an energy meter is running. It lists the GPUs with readable energy."""

ENERGY_JOURNAL = "energy"
"""Name of the journal with GPU samples of energy measurements, beside the other GPU samples."""

ENERGY_PASS = "energy"  # noqa: S105 - a name, not a password
"""Name of the energy measurement's interval."""


BURSTS = 8.0
"""How much higher the power next to an edge can be than the mean, as a multiple of the difference from it."""
_LONGEST_PERIOD_NS = 1_000_000_000_000


@dataclass(frozen=True)
class EnergyCounter:
    """How a GPU's energy counter is updated; depends on the vendor.

    The time between two ticks is ``period_ns`` and, averaged over many, from ``shortest_ns`` to ``longest_ns``. One
    tick can be off its time by ``jitter_ns``. A read of the counter takes about ``read_ns``.
    """

    period_ns: int
    shortest_ns: int
    longest_ns: int
    jitter_ns: int
    read_ns: int

    @staticmethod
    def of_facts(facts: Any) -> EnergyCounter:
        """Return the counter described in a journal's facts; NVML's if there is none."""
        try:
            found = EnergyCounter(**{name: int(value) for name, value in facts.items()})
        except (AttributeError, TypeError, ValueError, OverflowError):
            return NVML_COUNTER
        is_possible = 0 < found.period_ns < _LONGEST_PERIOD_NS and 0 <= found.jitter_ns < _LONGEST_PERIOD_NS
        return found if is_possible else NVML_COUNTER


NVML_COUNTER = EnergyCounter(100_100_000, 99_950_000, 100_150_000, 1_900_000, 4_000_000)
"""NVIDIA's counter (H200). Used for runs without a description of their counter."""


@dataclass(frozen=True)
class Tick:
    """One update of a GPU's counter: its time, the new value, and the duration of the read that observed it."""

    t_ns: int
    energy_mj: int
    reading_ns: int
    throttled_ns: int | None = None


@dataclass(frozen=True)
class Edge:
    """One edge of an interval: the requested time, the next tick, and the power between the two.

    If ``off_w`` is None, ``power_w`` is the mean between the ticks before and after the edge. Otherwise it is an
    estimate from the ticks around, and ``off_w`` its maximum error. ``reading_ns`` is the uncertainty of the tick's
    time. ``unsure_w`` is the maximum error of the power if the number of ticks that it is a mean of is uncertain.
    """

    at_ns: int
    tick_ns: int
    energy_mj: int
    reading_ns: int
    power_w: float
    throttled_ns: int | None
    off_w: float | None = None
    counter: EnergyCounter = NVML_COUNTER
    unsure_w: float = 0.0


@dataclass(frozen=True)
class WindowEnergy:
    """``energy_j`` is None if the interval has fewer than two ticks: it is below the counter's resolution."""

    start_ns: int
    end_ns: int
    energy_j: float | None
    uncertainty_j: float | None
    ticks: int
    throttled_ns: int | None


def edge_at(ticks: Sequence[Tick], at_ns: int, counter: EnergyCounter = NVML_COUNTER) -> Edge | None:
    """Return the edge at ``at_ns`` from the ticks around it; None with fewer than two ticks.

    Uses the next tick, or the last one if the samples end before that. Loads begin and end with intervals. So if the
    power before the previous tick differs from the power after the next one, it is assumed to change in one step, at
    the time that gives the energy between the two ticks.
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
    """Return the mean power from ``at_ns`` to the end of a period, given the powers before, in and after the period."""
    earlier_w, mean_w, later_w = powers_w
    if not min(earlier_w, later_w) < mean_w < max(earlier_w, later_w):
        return mean_w
    turn_ns = length_ns * (mean_w - later_w) / (earlier_w - later_w)
    earlier_ns = max(turn_ns - at_ns, 0.0)
    left_ns = length_ns - at_ns
    return (earlier_w * earlier_ns + later_w * (left_ns - earlier_ns)) / left_ns


def measure_window(start: Edge, end: Edge) -> WindowEnergy:
    """Return the energy between two edges.

    Loads begin and end with intervals, so the power between the ticks around an edge is not even. If it is below the
    interval's mean, the energy inside the interval is between that of an even power and all that came between the two
    ticks. The middle is taken: an even power would lose 12 J of a burst on average.

    The uncertainty has three parts: jitter and read duration of the two ticks, times the power there; half of that
    range for each edge; and what an unknown number of ticks between two reads adds.

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
    mean_w = max(mean_w, (counted_j - end.power_w * period_s) / max(seconds - period_s, period_s))
    first, last = _part(start, before_s, before_s, mean_w), _part(end, after_s, period_s - after_s, mean_w)
    energy_j, spread_j = energy_j + first[0] + last[0], first[1] + last[1]
    spread_j += abs(before_s) * start.unsure_w + abs(after_s) * end.unsure_w
    jitter_j = [(jitter_ns + edge.reading_ns / 2) / 1e9 * (edge.power_w + edge.unsure_w) for edge in (start, end)]
    uncertainty_j = (jitter_j[0] ** 2 + jitter_j[1] ** 2) ** 0.5 + spread_j
    return WindowEnergy(start.at_ns, end.at_ns, max(energy_j, 0.0), uncertainty_j, ticks, throttled_ns)


def _part(edge: Edge, to_tick_s: float, inside_s: float, mean_w: float) -> tuple[float, float]:
    """Return the energy that an even power leaves out at an edge, and its maximum error, in J.

    ``inside_s`` is the part of the tick's period inside the interval, ``mean_w`` the power inside the interval. That is
    a mean: next to the edge, the power can be several times as high. The part inside the interval cannot contain more
    energy than the whole period.
    """
    if edge.off_w is not None:
        return 0.0, abs(to_tick_s) * edge.off_w
    outside_s = edge.counter.period_ns / 1e9 - inside_s
    spread_j = max(inside_s, 0.0) * abs(edge.power_w - mean_w)
    if outside_s < 0:
        return 0.0, spread_j
    range_j = min(BURSTS * spread_j, outside_s * edge.power_w)
    return (0.0, max(range_j, spread_j)) if mean_w < edge.power_w else (range_j / 2, range_j / 2)
