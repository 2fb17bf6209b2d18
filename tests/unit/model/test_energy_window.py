"""Energy of an interval from a counter's ticks: edges, and the parts of its uncertainty, in numbers that are round."""

from __future__ import annotations

from typing import Any

import pytest
from present import present

from gpuledger.model.energy_window import (
    BURSTS,
    NVML_COUNTER,
    Edge,
    EnergyCounter,
    Tick,
    WindowEnergy,
    edge_at,
    measure_window,
)

MS = 1_000_000
COUNTER = EnergyCounter(period_ns=100 * MS, shortest_ns=99 * MS, longest_ns=101 * MS, jitter_ns=2 * MS, read_ns=MS)


def ticks_of(*powers_w: int) -> list[Tick]:
    """Return ticks every 100 ms, with these powers between them, and 1 ms of the power limit in each."""
    ticks = [Tick(0, 0, 4 * MS, 0)]
    for number, power_w in enumerate(powers_w, 1):
        ticks.append(Tick(number * 100 * MS, ticks[-1].energy_mj + 100 * power_w, 4 * MS, number * MS))
    return ticks


@pytest.mark.parametrize(
    ("powers_w", "at_ms", "tick", "power_w", "off_w"),
    [
        ((100, 100, 200, 300), 0, 1, 100, None),  # the first tick is none that an interval can begin with
        ((100, 100, 200, 300), 50, 1, 100, None),
        ((100, 100, 200, 300), 150, 2, 100, None),
        ((100, 100, 200, 300), 200, 2, 100, None),
        # Half of the third period has 100 W, and then 300 W.
        ((100, 100, 200, 300), 220, 3, (100 * 30 + 300 * 50) / 80, 12.5),
        ((100, 100, 200, 300), 250, 3, 300, 50),
        ((100, 100, 200, 300), 275, 3, 300, 50),
        ((100, 100, 200, 300), 300, 3, 200, None),
        ((100, 100, 200, 300), 350, 4, 300, None),  # what comes after the last tick is not known
        ((100, 100, 200, 300), 999, 4, 300, None),
        ((100, 200, 300), 150, 2, 300, 50),  # one period before and one after are enough
        ((300, 150, 100), 110, 2, (300 * 15 + 100 * 75) / 90, 25 / 3),  # a quarter of it has 300 W
        ((100, 300, 200), 150, 2, 300, None),  # more than before and after
        ((100, 100, 300), 150, 2, 100, None),
        ((100, 300, 300), 150, 2, 300, None),
        ((100,), 50, 1, 100, None),
    ],
)
def test_the_power_at_an_edge_changes_once_between_the_powers_around(
    powers_w: tuple[int, ...], at_ms: int, tick: int, power_w: float, off_w: float | None
) -> None:
    ticks = ticks_of(*powers_w)
    found = present(edge_at(ticks, at_ms * MS, COUNTER))
    assert (found.at_ns, found.counter, found.unsure_w) == (at_ms * MS, COUNTER, 0.0)
    like = ticks[tick]
    assert (found.tick_ns, found.energy_mj, found.reading_ns, found.throttled_ns) == (
        like.t_ns, like.energy_mj, like.reading_ns, like.throttled_ns,
    )  # fmt: skip
    assert found.power_w == pytest.approx(power_w)
    assert found.off_w == (None if off_w is None else pytest.approx(off_w))


def test_an_edge_needs_two_ticks() -> None:
    assert edge_at(ticks_of(), 0) is None
    assert present(edge_at(ticks_of(7), 0)).counter == NVML_COUNTER


def edge(at_ms: int, tick_ms: int, energy_j: int, power_w: float, **more: Any) -> Edge:
    return Edge(
        at_ms * MS,
        tick_ms * MS,
        energy_j * 1_000,
        4 * MS,
        power_w,
        **{"throttled_ns": None, "counter": COUNTER, **more},
    )


def window(start: dict[str, Any], end: dict[str, Any]) -> WindowEnergy:
    """Return the energy of 1 s at 400 W, from 50 ms before a tick to 50 ms before the tenth after it, with changes."""
    first = {"at_ms": 50, "tick_ms": 100, "energy_j": 10, "power_w": 400.0}
    last = {"at_ms": 1_050, "tick_ms": 1_100, "energy_j": 410, "power_w": 400.0}
    return measure_window(edge(**{**first, **start}), edge(**{**last, **end}))


ABOVE_J = BURSTS * 0.05 * (390 / 0.9 - 400)


def jitter_j(first_w: float, last_w: float) -> float:
    """2 ms of jitter and half of the read's 4 ms at each edge."""
    return float(((0.004 * first_w) ** 2 + (0.004 * last_w) ** 2) ** 0.5)


@pytest.mark.parametrize(
    ("start", "end", "energy_j", "spread_j", "powers_w"),
    [
        ({}, {}, 400, 0, (400, 400)),
        # 5 J came before the first tick, half of which may be outside: the load began with the interval.
        ({"power_w": 100.0}, {}, 400 + 5 - 20 + 2.5, 2.5, (100, 400)),
        # At 500 W more may be inside than the mean has, or all 25 J outside.
        ({}, {"power_w": 500.0}, 400 + 20 - 25, 25, (400, 500)),
        # The interval's own mean is 390 J in 0.9 s, and not 400 W.
        ({}, {"power_w": 100.0}, 400 + 20 - 5 + ABOVE_J / 2 + 2.5, ABOVE_J / 2 + 2.5, (400, 100)),
        # A burst next to the edge has at most so many times the difference from the mean.
        ({"power_w": 399.0}, {}, 400 + 19.95 - 20 + BURSTS * 0.05 / 2, BURSTS * 0.05 / 2, (399, 400)),
        ({"power_w": 402.0}, {}, 400 + 20.1 - 20, BURSTS * 0.1, (402, 400)),
        # The tick is more than a period away from the edge.
        ({"at_ms": -50, "power_w": 300.0}, {}, 400 + 45 - 20, 0.15 * 100, (300, 400)),
        # The last tick is before the edge: nothing of its period is inside.
        ({"at_ms": 110, "power_w": 300.0}, {}, 400 - 3 - 20, 0, (300, 400)),
        ({"power_w": 100.0, "off_w": 30.0}, {"off_w": 20.0}, 400 + 5 - 20, 0.05 * 50, (100, 400)),
        ({"unsure_w": 100.0}, {"unsure_w": 300.0}, 400, 0.05 * 400, (500, 700)),
        ({"energy_j": 409, "at_ms": 1_000}, {"at_ms": 1_049, "power_w": 400.0}, 0, None, None),
    ],
)
def test_what_an_interval_has_beyond_its_ticks_is_known_within_the_uncertainty(
    start: dict[str, Any],
    end: dict[str, Any],
    energy_j: float,
    spread_j: float | None,
    powers_w: tuple[float, float] | None,
) -> None:
    found = window(start, end)
    assert found.energy_j == pytest.approx(energy_j)
    if spread_j is not None and powers_w is not None:
        assert found.uncertainty_j == pytest.approx(jitter_j(*powers_w) + spread_j)


@pytest.mark.parametrize(
    ("start", "end", "ticks", "is_known"),
    [
        ({}, {}, 10, True),
        ({}, {"tick_ms": 300, "at_ms": 250}, 2, True),
        ({}, {"tick_ms": 249, "at_ms": 200}, 1, False),  # 1.49 periods
        ({}, {"tick_ms": 100, "at_ms": 90}, 0, False),
        ({}, {"tick_ms": 0, "at_ms": 60}, 0, False),
        ({}, {"energy_j": 10}, 10, True),
        ({}, {"energy_j": 9}, 10, False),  # a counter that went back
        ({"at_ms": 1_050}, {}, 10, False),
        ({"at_ms": 1_049}, {}, 10, True),
    ],
)
def test_an_interval_needs_two_ticks_a_counter_that_rises_and_a_length(
    start: dict[str, Any], end: dict[str, Any], ticks: int, is_known: bool
) -> None:
    found = window(start, end)
    assert (found.ticks, found.energy_j is not None, found.uncertainty_j is not None) == (ticks, is_known, is_known)
    assert (found.start_ns, found.end_ns) == (start.get("at_ms", 50) * MS, end.get("at_ms", 1_050) * MS)


@pytest.mark.parametrize(("first", "last", "found"), [(3, 10, 7), (0, 0, 0), (None, 10, None), (3, None, None)])
def test_time_at_the_power_limit_is_that_between_the_ticks(
    first: int | None, last: int | None, found: int | None
) -> None:
    assert window({"throttled_ns": first}, {"throttled_ns": last}).throttled_ns == found
