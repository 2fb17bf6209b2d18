"""The sampler on a simulated clock: on time beside slow reads of the counter, every window measured where it lay."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from simulated_card import MS, START_NS, TICK_NS, Clock, S, SimulatedCard, order, sampled

from gpuledger.cards.energy_edges import EdgeFinder
from gpuledger.cards.energy_windows import EnergyWindows
from gpuledger.collect.sampling.process_tree import ProcessFamily
from gpuledger.model.energy_window import Edge
from gpuledger.model.journal.reading import Journal

INTERVAL_NS = 5 * MS


def windows_of(journal: Journal) -> dict[str, float]:
    """Return the energy of each window by name; nan where it is not known."""
    table = journal.tables["windows"]
    names = [journal.names[number] if number >= 0 else "" for number in table["name_id"].tolist()]
    return dict(zip(names, table["energy_j"].tolist(), strict=True))


def test_readings_are_on_time_beside_thirty_windows(tmp_path: Path) -> None:
    orders = [order(0.01, do="begin", window=99, name=""), order(60.01, do="end", window=99), order(60.02, do="stop")]
    for number in range(30):
        orders.append(order(2 * number + 0.02, do="begin", window=number, name=f"{number:02d}"))
        orders.append(order(2 * number + 2.0, do="end", window=number))
    clock = Clock()
    card = SimulatedCard(clock)
    sampler, journal = sampled(tmp_path, clock, [card], INTERVAL_NS, orders)
    assert sampler.on_time / (sampler.readings + sampler.missed) >= 0.99
    assert card.counter_reads < 2.2 * 62  # reading until it moves takes fifteen an edge
    found = windows_of(journal)
    assert found.pop("") == pytest.approx(300 * 60.0, rel=0.002)
    assert len(found) == 30
    assert all(energy_j == pytest.approx(300 * 1.98, rel=0.005) for energy_j in found.values())


def test_a_thousand_hertz_are_kept(tmp_path: Path) -> None:
    clock = Clock()
    orders = [order(0.2, do="begin", window=0, name=""), order(9.8, do="end", window=0), order(9.9, do="stop")]
    sampler, _ = sampled(tmp_path, clock, [SimulatedCard(clock)], MS, orders)
    assert sampler.on_time / (sampler.readings + sampler.missed) >= 0.99


@pytest.mark.parametrize("interval_ns", [MS, INTERVAL_NS, 100 * MS, 2 * S])
def test_edges_are_found_at_any_interval(interval_ns: int, tmp_path: Path) -> None:
    """A window that begins when a readings' pause has long begun is measured from its own begin."""
    clock = Clock()
    orders = [order(1.0, do="begin", window=0, name="x"), order(4.0, do="end", window=0), order(4.1, do="stop")]
    _, journal = sampled(
        tmp_path, clock, [SimulatedCard(clock, watts=lambda t: 900 if 0.5 < t - START_NS / S < 4.05 else 90)],
        interval_ns, orders,
    )  # fmt: skip
    assert windows_of(journal)["x"] == pytest.approx(2700, rel=0.02)


def test_many_short_windows_are_unknown_and_do_not_delay_the_long_one(tmp_path: Path) -> None:
    """An edge that waits for a tick of its own holds up the next: they would be measured where they were not."""
    clock = Clock()
    orders = [order(0.5, do="begin", window=0, name="outer")]
    for number in range(1, 151):
        orders.append(order(0.5 + number / 100, do="begin", window=number, name="inner"))
        orders.append(order(0.505 + number / 100, do="end", window=number))
    orders += [order(2.5, do="end", window=0), order(2.51, do="stop")]
    card = SimulatedCard(clock, watts=lambda t: 600 if t - START_NS / S < 2.65 else 60)
    _, journal = sampled(tmp_path, clock, [card], INTERVAL_NS, orders)
    found = windows_of(journal)
    assert np.isnan(found["inner"])
    assert found["outer"] == pytest.approx(1200, rel=0.02)
    assert journal.rows("windows") == 151
    assert clock.now_ns < START_NS + 3 * S  # the end was not delayed either


def test_several_cards_share_the_time(tmp_path: Path) -> None:
    clock = Clock()

    def steady(watts: float) -> Callable[[float], float]:
        return lambda _: watts

    cards = [SimulatedCard(clock, index, watts=steady(100 * index + 100)) for index in range(4)]
    orders = [order(1.5, do="begin", window=0, name=""), order(11.5, do="end", window=0), order(11.6, do="stop")]
    sampler, journal = sampled(tmp_path, clock, cards, INTERVAL_NS, orders)
    table = journal.tables["windows"]
    energy = dict(zip(table["device_idx"].tolist(), table["energy_j"].tolist(), strict=True))
    assert energy == {index: pytest.approx(1000 * index + 1000, rel=0.01) for index in range(4)}
    assert sampler.on_time / (sampler.readings + sampler.missed) >= 0.98


def test_a_card_that_is_lost_ends_its_samples_and_the_window_has_no_energy(tmp_path: Path) -> None:
    clock = Clock()
    card = SimulatedCard(clock)

    def used(now_ns: int) -> int:
        card.is_there = now_ns < START_NS + S
        return 5

    card.used_bytes = used
    orders = [order(0.5, do="begin", window=0, name=""), order(2, do="end", window=0), order(2.1, do="stop")]
    _, journal = sampled(tmp_path, clock, [card], INTERVAL_NS, orders)
    assert journal.notes == ["GPU 0 stopped responding, and its samples end there."]
    assert np.isnan(windows_of(journal)[""])
    assert journal.tables["samples"]["t_ns"].max() < START_NS + 1.01 * S


def test_readings_that_fail_now_and_then_are_counted(tmp_path: Path) -> None:
    clock = Clock()
    card = SimulatedCard(clock)
    card.used_bytes = lambda now_ns: None if now_ns > START_NS + S else 5
    _, journal = sampled(tmp_path, clock, [card], 100 * MS, [order(2.05, do="stop")])
    assert journal.notes == ["GPU 0 reported no memory in 11 samples."]


def test_a_parent_that_was_killed_is_noted_and_its_windows_are_closed(tmp_path: Path) -> None:
    clock = Clock()
    orders = [order(0.5, do="begin", window=0, name=""), order(3.5, do="gone")]
    _, journal = sampled(tmp_path, clock, [SimulatedCard(clock)], INTERVAL_NS, orders)
    assert journal.notes == ["gpuledger was killed, and the samples end there."]
    assert windows_of(journal)[""] == pytest.approx(900, rel=0.01)
    assert journal.facts["closed"] == "end"


def test_names_stay_with_their_windows_across_parts(tmp_path: Path) -> None:
    clock = Clock()
    orders = [order(200, do="stop")]
    for number in range(5):
        orders.append(order(1 + 30 * number, do="begin", window=number, name=f"{number + 1} s"))
        orders.append(order(2 + 31 * number, do="end", window=number))
    _, journal = sampled(tmp_path, clock, [SimulatedCard(clock)], 100 * MS, orders)
    assert len(list(tmp_path.glob("*.npz"))) > 3
    assert windows_of(journal) == {f"{n + 1} s": pytest.approx(300 * (n + 1), rel=0.02) for n in range(5)}


def test_an_edge_that_is_heard_of_late_is_uncertain_and_then_unknown() -> None:
    """A sampler that had no processor for a while cannot know the power of that time."""
    clock = Clock()
    found: list[Edge | None] = []
    card = SimulatedCard(clock)
    finder = EdgeFinder(card, clock.time_ns)
    for late_ns in (2 * MS, 300 * MS, 2 * S):
        finder.want(clock.now_ns - late_ns, found.append)
        while finder.due_ns is not None:
            clock.now_ns = max(clock.now_ns, finder.due_ns)
            finder.read()
    soon, late, unknown = found
    assert soon is not None
    assert late is not None
    assert soon.reading_ns < 20 * MS
    assert late.reading_ns > 600 * MS
    assert unknown is None


def test_a_tick_nobody_looked_at_is_not_taken() -> None:
    """Reads far apart do not say when the counter moved: the edge is that of the next tick, with the power of both."""
    clock = Clock()
    found: list[Edge | None] = []
    card = SimulatedCard(clock)
    finder = EdgeFinder(card, clock.time_ns)
    clock.now_ns = START_NS // TICK_NS * TICK_NS + 50 * MS
    finder.want(clock.now_ns, found.append)
    finder.read()
    clock.now_ns += 80 * MS
    while finder.due_ns is not None:
        clock.now_ns = max(clock.now_ns, finder.due_ns)
        finder.read()
    (edge,) = found
    assert edge is not None
    assert edge.reading_ns < 10 * MS
    assert abs((edge.tick_ns + TICK_NS // 2) % TICK_NS - TICK_NS // 2) < 5 * MS
    assert edge.power_w == pytest.approx(300)


def test_a_window_that_is_not_open_is_none() -> None:
    clock = Clock()
    windows = EnergyWindows([SimulatedCard(clock)], lambda *_: None, clock.time_ns)
    windows.end(7, clock.now_ns)
    assert windows.due_ns is None


def test_a_day_at_ten_hertz_fits_on_a_hundred_mib(tmp_path: Path) -> None:
    """One hour, so that the test is short; the parts of any other hour are as large."""
    clock = Clock()
    card = SimulatedCard(clock, watts=lambda t: 300 + 100 * np.sin(t))
    card.used_bytes = lambda now_ns: (1 << 30) + (now_ns // MS % 977 << 20)
    card.processes = [(os.getpid(), 1 << 29)]
    _, journal = sampled(tmp_path, clock, [card], 100 * MS, [order(1800, do="stop")])
    assert journal.rows("samples") == pytest.approx(18_000, rel=0.01)
    assert len(list(tmp_path.glob("*.npz"))) >= 30  # a part a minute: what waits in memory does not grow
    day = 48 * sum(place.stat().st_size for place in tmp_path.iterdir())
    assert day < 60e6  # and the tables made of it as much again


class TestFamily:
    """Whose a process on the GPU is."""

    def test_a_grandchild_is_found_when_it_is_first_seen(self) -> None:
        source = "import subprocess, sys; p = subprocess.Popen(['sleep', '30']); print(p.pid, flush=True); p.wait()"
        with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            family = ProcessFamily()
            family.follow(child.pid)
            grandchild = int(child.stdout.readline())
            family.see([grandchild, 1])
            assert family.on_card == {child.pid, grandchild}
            child.kill()
            family.look()
            family.see([grandchild])
            assert grandchild in family.on_card  # its parent has ended since
            os.kill(grandchild, 9)

    def test_a_stranger_is_no_sign_of_a_container(self) -> None:
        family = ProcessFamily()
        family.follow(os.getpid())
        family.see([1])
        assert not family.is_elsewhere
        family.see([4_000_000])
        assert not family.is_elsewhere  # it may have ended just now
        family.see([4_000_000])
        family.look()
        assert family.is_elsewhere
        assert family.on_card == {os.getpid()}
