"""When the GPUs of an energy measurement are sampled, and which power they show."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from simulated_card import MS, Clock, SimulatedCard

from gpuledger.cards.card import Card, SensorReading
from gpuledger.collect.sampling import energy_meter
from gpuledger.collect.sampling.energy_meter import LINGER_PERIODS, CardMeter, EnergyMeter
from gpuledger.model.energy_window import ENERGY_JOURNAL, ENERGY_MARKER, NVML_COUNTER
from gpuledger.model.journal.checks import read_checked
from gpuledger.model.run_directory import SAMPLE_JOURNALS

LINGER_NS = round(LINGER_PERIODS * NVML_COUNTER.period_ns)


class Meter:
    """Stands in for the thread that samples one GPU."""

    made: list[Meter]

    def __init__(self, card: Card, number: int) -> None:
        self.counts, self.running, self.failure = True, False, None
        Meter.made.append(self)

    def start(self) -> None:
        self.running = True

    def end(self) -> None:
        self.running = False


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    Meter.made = []
    monkeypatch.setattr(energy_meter, "CardMeter", Meter)
    (tmp_path / "rank-0").mkdir()
    return tmp_path


def begin(run: Path, *, until_end: bool = False) -> EnergyMeter:
    return EnergyMeter(run, [SimulatedCard(Clock())], until_end=until_end, pid=lambda: None)


def open_measurement(run: Path, card: str) -> Path:
    place = run / "rank-0" / ENERGY_MARKER
    place.write_text(json.dumps({"cards": [card]}), encoding="utf-8")
    return place


@pytest.mark.parametrize("until_end", [False, True])
def test_a_card_is_sampled_for_two_periods_and_a_half_after_its_measurement(until_end: bool, run: Path) -> None:
    meter = begin(run, until_end=until_end)
    meter.look(0)
    assert Meter.made == []
    marker = open_measurement(run, SimulatedCard(Clock()).uuid)
    meter.look(10 * MS)
    meter.look(20 * MS)
    (sampled,) = Meter.made
    marker.unlink()
    meter.look(30 * MS)
    meter.look(30 * MS + LINGER_NS)
    assert (sampled.counts, sampled.running) == (True, True)
    meter.look(30 * MS + LINGER_NS + 1)
    assert (sampled.counts, sampled.running) == (False, until_end)


def test_a_measurement_that_opens_again_starts_the_wait_anew(run: Path) -> None:
    meter = begin(run)
    uuid = SimulatedCard(Clock()).uuid
    open_measurement(run, uuid)
    meter.look(0)
    (run / "rank-0" / ENERGY_MARKER).unlink()
    meter.look(10 * MS)
    open_measurement(run, uuid)
    meter.look(20 * MS)
    (run / "rank-0" / ENERGY_MARKER).unlink()
    meter.look(30 * MS + LINGER_NS)
    (sampled,) = Meter.made
    assert sampled.counts
    meter.look(30 * MS + 2 * LINGER_NS + 1)
    assert not sampled.counts


def test_a_measurement_of_a_card_that_is_not_this_runs_is_left_alone(run: Path) -> None:
    meter = begin(run)
    open_measurement(run, "GPU-of-others")
    meter.look(0)
    assert Meter.made == []


@pytest.mark.parametrize(
    ("average_w", "instant_w", "power_w"), [(100.0, 90.0, 90.0), (100.0, None, 100.0), (None, 90.0, 90.0)]
)
def test_the_power_of_a_moment_is_preferred_to_that_of_a_second(
    average_w: float | None, instant_w: float | None, power_w: float
) -> None:
    card: Any = SimpleNamespace(read_sensors=lambda: SensorReading(average_w, instant_w, 1.0, 1980, 55, 0))
    assert energy_meter._power_w(cast(Card, card)) == power_w


def test_measurements_are_looked_for_every_few_milliseconds_until_the_run_ends(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A measurement of one tick, 0.1 s, must not begin and end unseen."""
    meter = begin(run)
    looks, waits_s = [], [0.0]

    def wait(timeout: float) -> bool:
        waits_s.append(timeout)
        return len(waits_s) > 5

    monkeypatch.setattr(meter, "look", lambda: looks.append(len(waits_s)))
    monkeypatch.setattr(meter, "_stopped", SimpleNamespace(wait=wait))
    meter._run()
    assert len(looks) == 4
    assert all(0 < wait_s < 0.1 for wait_s in waits_s[1:])


def test_nothing_is_read_while_the_samples_are_written(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = begin(run)
    open_measurement(run, SimulatedCard(Clock()).uuid)
    meter.look(0)
    done: list[str] = []
    monkeypatch.setattr(meter, "_thread", SimpleNamespace(ident=1, join=lambda: done.append("looking ended")))
    monkeypatch.setattr(Meter.made[0], "end", lambda: done.append("sampling ended"))
    monkeypatch.setattr(meter, "write", lambda: done.append("written"))
    with meter:
        assert done == []
    assert done == ["looking ended", "sampling ended", "written"]


def test_all_processes_that_the_program_ever_had_are_its_own(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those at the start of a measurement, and those at the end."""
    children = iter(({1, 2}, {2, 3}))
    monkeypatch.setattr(energy_meter, "children_of", lambda pid: next(children))
    monkeypatch.setattr(Meter, "log", SimpleNamespace(take=lambda part: None), raising=False)
    meter = EnergyMeter(run, [SimulatedCard(Clock())], until_end=False, pid=lambda: 1)
    open_measurement(run, SimulatedCard(Clock()).uuid)
    meter.look(0)
    meter.write()
    assert read_checked(run / SAMPLE_JOURNALS / ENERGY_JOURNAL).facts["own_pids"] == [1, 2, 3]


@pytest.mark.parametrize("memory", [None, (1, 2, 3)])
def test_sensors_are_kept_with_the_memory_of_their_moment(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimulatedCard(Clock())
    monkeypatch.setattr(card, "read_memory", lambda: memory)
    meter = CardMeter(card, 0, lambda: 7)
    kept: list[str] = []
    for name in ("add_memory", "add_sensors", "add_processes"):
        monkeypatch.setattr(meter.log, name, lambda *_, name=name: kept.append(name))
    meter._read_sensors(7)
    assert kept == ([] if memory is None else ["add_memory", "add_sensors", "add_processes"])
