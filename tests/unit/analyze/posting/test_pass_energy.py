"""Energy of a pass from what a meter read: exact for steady power, and what disturbs it is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from present import present
from simulated_card import TICK_NS, Clock, RealClock, SimulatedCard

from gpuledger.analyze.posting.pass_energy import COUNTER, POWER, CardReadings, _exact, measure_pass, readings_of
from gpuledger.collect.sampling.energy_meter import CardMeter, EnergyMeter
from gpuledger.model.energy_window import ENERGY_JOURNAL, ENERGY_MARKER, NVML_COUNTER, EnergyCounter, Tick
from gpuledger.model.journal.checks import read_checked
from gpuledger.model.journal.journal import COLUMNS, Part
from gpuledger.model.journal.reading import Journal, journal_of
from gpuledger.model.pass_facts import EnergyEdges
from gpuledger.model.run_directory import SAMPLE_JOURNALS

MS = 1_000_000
WATTS = 400.0


def followed(card: SimulatedCard, clock: Clock, length_ns: int) -> list[Tick]:
    """Return the ticks that a meter keeps of a GPU."""
    meter = CardMeter(card, 0, clock.time_ns)
    ticks: list[Tick] = []
    meter.log.add_tick = lambda index, tick: ticks.append(tick)  # type: ignore[method-assign]
    until_ns = clock.now_ns + length_ns
    while clock.now_ns < until_ns:
        meter.read()
        clock.now_ns = max(clock.now_ns, meter.due_ns)
    return ticks


@given(read_ns=st.integers(MS // 10, 6 * MS))
def test_every_tick_is_seen_where_it_is_and_between_them_the_driver_is_left_alone(read_ns: int) -> None:
    clock = Clock()
    card = SimulatedCard(clock, read_ns=read_ns)
    ticks = followed(card, clock, 40 * TICK_NS)
    off_ns = [abs((tick.t_ns + TICK_NS // 2) % TICK_NS - TICK_NS // 2) for tick in ticks]
    assert len(ticks) >= 32
    assert all(off <= tick.reading_ns for off, tick in zip(off_ns, ticks, strict=True))
    assert max(off_ns) <= 2 * MS + 2 * read_ns
    assert card.counter_reads <= 3 * len(ticks) + 100 * MS // (read_ns + MS // 2) + 5


def test_a_counter_that_stands_still_is_hardly_asked() -> None:
    clock = Clock()
    card = SimulatedCard(clock, watts=lambda _: 0.0)
    assert followed(card, clock, 10_000 * MS) == []
    assert card.counter_reads < 1000


def steady_ticks(throttled_ns: int) -> tuple[Tick, ...]:
    """Return the ticks of five seconds at WATTS, the power cap at work for so long in each."""
    return tuple(Tick(n * TICK_NS, round(n * WATTS * TICK_NS / 1e6), 3 * MS, n * throttled_ns) for n in range(50))


def readings(**changes: Any) -> CardReadings:
    """Return five seconds of a GPU at WATTS: ticks every 100.1 ms, sensors every 50 ms."""
    t_ns = np.arange(0, 5_000 * MS, 50 * MS, dtype=np.int64)
    values: dict[str, Any] = {
        "ticks": steady_ticks(throttled_ns=1000),
        "t_ns": t_ns,
        "power_w": WATTS + np.where(np.arange(t_ns.size) % 2, 1.0, -1.0),
        "temperature_c": np.full(t_ns.size, 50.0),
        "idle_w": 90.0,
        "foreign": (),
    }
    return CardReadings(**{**values, **changes})


def edges(start_ms: int = 1000, end_ms: int = 3000) -> EnergyEdges:
    idle_ns = ((0, 500 * MS), (4000 * MS, 4500 * MS))
    return EnergyEdges(
        cards=((0, "GPU-0"),), first_step=7, last_step=16, idle_ns=idle_ns, start_ns=start_ms * MS, end_ns=end_ms * MS
    )


@given(start_ms=st.integers(300, 2000), length_ms=st.integers(350, 2500))
def test_steady_power_is_counted_wherever_the_edges_lie(start_ms: int, length_ms: int) -> None:
    found = measure_pass(0, edges(start_ms, start_ms + length_ms), readings())
    assert found.energy_j == pytest.approx(WATTS * length_ms / 1e3, rel=1e-3)
    assert found.source == COUNTER
    assert found.uncertainty_j is not None
    assert found.uncertainty_j < 3
    assert found.notes == ()
    assert found.base_before_w == pytest.approx(WATTS)
    assert found.base_after_w == pytest.approx(WATTS)
    assert found.idle_w == 90


@given(
    start_ms=st.integers(600, 1500),
    length_ms=st.integers(400, 2500),
    idle_w=st.integers(60, 150),
    load_w=st.integers(160, 700),
)
def test_a_load_that_begins_and_ends_with_the_window_is_all_in_it(
    start_ms: int, length_ms: int, idle_w: int, load_w: int
) -> None:
    """Though neither its first nor its last ms is where the counter ticks."""
    start_ns, end_ns = start_ms * MS, (start_ms + length_ms) * MS

    def shown(number: int) -> Tick:
        t_ns = number * TICK_NS
        load_ns = min(max(t_ns - start_ns, 0), end_ns - start_ns)
        return Tick(t_ns, round((idle_w * (t_ns - load_ns) + load_w * load_ns) / 1e6), 0)

    ticks = tuple(shown(number) for number in range(50))
    found = measure_pass(0, edges(start_ms, start_ms + length_ms), readings(ticks=ticks))
    assert found.energy_j == pytest.approx(load_w * length_ms / 1e3, rel=1e-3, abs=0.01)
    assert found.uncertainty_j is not None
    assert found.uncertainty_j < 0.026 * (load_w - idle_w) + 0.003 * load_w


def test_without_a_counter_the_power_is_summed_and_that_is_said() -> None:
    found = measure_pass(0, edges(), readings(ticks=()))
    assert found.energy_j == pytest.approx(WATTS * 2, rel=0.01)
    assert found.source == POWER
    # The sensor's gain, and one sample more or less: samples differ by 2 W.
    assert 0 < present(found.uncertainty_j) - 0.05 * present(found.energy_j) < 1
    assert ["integrated over the samples" in note for note in found.notes] == [True]


NOTHING = np.full(100, np.nan)


@pytest.mark.parametrize(
    ("changes", "span_ms", "words"),
    [
        ({}, (1010, 1060), "too short for cuda:0's counter"),
        ({"ticks": (), "power_w": NOTHING}, (1000, 3000), "neither energy counter nor power"),
        ({"ticks": (), "power_w": np.full(100, 300.0)}, (1000, 3000), "stays at 300.0 W"),
        ({"ticks": ()}, (1000, 1020), "too short"),
    ],
)
def test_joules_that_cannot_be_known_are_none_with_a_reason(
    changes: dict[str, Any], span_ms: tuple[int, int], words: str
) -> None:
    found = measure_pass(0, edges(*span_ms), readings(**changes))
    assert (found.energy_j, found.uncertainty_j) == (None, None)
    assert [words in note for note in found.notes] == [True]


@pytest.mark.parametrize(
    ("times_ms", "watts", "energy_j", "spread_w"),
    [
        ((0, 100, 200), (10, 20, 30), 10 * 0.05 + 20 * 0.1 + 30 * 0.05, 10),
        ((0, 50, 100, 250, 300), (99, 10, 20, 99, 99), 10 * 0.05 + 20 * 0.15, 10),
        ((100, 200), (20, 30), 20 * 0.15 + 30 * 0.05, 10),  # the first sample is for the time before it too
        ((0, 100, 150, 200), (10, 20, np.nan, 30), 10 * 0.05 + 20 * 0.1 + 30 * 0.05, 10),
        ((0, 100), (10, 20), None, None),  # one sample inside
        ((49, 250), (10, 20), None, None),
    ],
)
def test_power_is_that_of_the_sample_before_it(
    times_ms: tuple[int, ...], watts: tuple[float, ...], energy_j: float | None, spread_w: float | None
) -> None:
    """From 50 to 250 ms. The error is the sensor's gain of 5 %, and 0.1 s of the range that was seen inside."""
    more = {"t_ns": np.array(times_ms) * MS, "power_w": np.array(watts, dtype=np.float64)}
    still = np.full(len(times_ms), 50.0)
    found = measure_pass(0, edges(50, 250), readings(ticks=(), temperature_c=still, **more))
    assert (found.energy_j, found.ticks) == (None if energy_j is None else pytest.approx(energy_j), 0)
    if energy_j is not None and spread_w is not None:
        assert found.uncertainty_j == pytest.approx(0.05 * energy_j + 0.1 * spread_w)


@pytest.mark.parametrize(("count", "is_known"), [(19, True), (20, False)])
def test_twenty_equal_samples_are_a_sensor_that_stands_still(count: int, is_known: bool) -> None:
    still = {
        "t_ns": np.arange(count) * 50 * MS,
        "power_w": np.full(count, 300.0),
        "temperature_c": np.full(count, 50.0),
    }
    found = measure_pass(0, edges(0, count * 50), readings(ticks=(), **still))
    assert (found.energy_j is not None) is is_known
    moved = {**still, "power_w": np.append(np.full(count - 1, 300.0), 301.0)}
    assert measure_pass(0, edges(0, count * 50), readings(ticks=(), **moved)).energy_j is not None


@pytest.mark.parametrize(
    ("span_ms", "ticks_ms", "base_w"),
    [
        ((0, 400), (150, 400), 100.0),  # from 150 ms after the last kernel to the end
        ((1, 400), (150, 400), 7.0),
        ((0, 399), (150, 400), 7.0),
        ((0, 400), (100, 200, 300), 100.0),
    ],
)
def test_idle_power_is_counted_where_two_ticks_are_in_the_settled_time_and_else_the_median(
    span_ms: tuple[int, int], ticks_ms: tuple[int, ...], base_w: float
) -> None:
    """The sensor has 7 W in that time, 99 W before and after it, and one sample of 50 W and one without a value."""
    ticks = tuple(Tick(at * MS, 100 * at, 3 * MS) for at in ticks_ms)
    begin, end = span_ms[0] + 150, span_ms[1]
    times = [begin - 1, begin, begin + 1, begin + 2, begin + 3, end, end + 1]
    more = {"t_ns": np.array(times) * MS, "power_w": np.array([99.0, 7, 50, 7, np.nan, 7, 99])}
    idle_ns = ((span_ms[0] * MS, span_ms[1] * MS),)
    found = measure_pass(
        0, replace(edges(500, 1000), idle_ns=idle_ns), readings(ticks=ticks, **more, temperature_c=np.full(7, 50.0))
    )
    assert found.base_after_w is None
    assert found.base_before_w == pytest.approx(base_w)


def journal_of_a_card(**facts: Any) -> Journal:
    """Return a meter's journal of two GPUs; the second one has every kind of row."""
    part = Part(facts={"card_uuids": ["GPU-a", "GPU-b"], **facts})
    nothing = dict.fromkeys(COLUMNS["sensors"], 0)
    for index, times in ((0, (5,)), (1, (0, 10, 10, 9, 20))):
        for place, t_ns in enumerate(times):
            throttled_ns = (-1, 0, 8, 8, 9)[place]
            part.add("ticks", t_ns=t_ns, device_idx=index, energy_mj=place, reading_ns=3, throttled_ns=throttled_ns)
        for t_ns, temperature in ((1, -1), (2, 0), (3, 40)):
            power = {"power_average_w": 10.0 * t_ns, "power_instant_w": np.nan if facts else 20.0 * t_ns}
            part.add("sensors", **nothing | power | {"t_ns": t_ns, "device_idx": index, "temperature_c": temperature})
    for index, pid in ((0, 5), (1, 6), (1, 7), (1, 6)):
        part.add("process_samples", t_ns=1, device_idx=index, pid=pid, bytes=9)
    return journal_of([part])


def test_readings_are_of_one_gpu_in_order_without_what_was_not_read() -> None:
    found = readings_of(journal_of_a_card(), 1)
    assert found.ticks == (Tick(0, 0, 3, None), Tick(10, 1, 3, 0), Tick(20, 4, 3, 9))
    assert (found.t_ns.tolist(), found.power_w.tolist()) == ([1, 2, 3], [20, 40, 60])
    assert np.isnan(found.temperature_c).tolist() == [True, False, False]
    assert found.temperature_c[1:].tolist() == [0, 40]
    assert (found.idle_w, found.foreign) == (None, ())
    assert len(readings_of(journal_of_a_card(), 0).ticks) == 1


@pytest.mark.parametrize(
    ("facts", "foreign"),
    [
        ({"own_pids": [6, 9]}, (7,)),
        ({"own_pids": [9], "pids_before": {"GPU-b": [7, 5], "GPU-a": [6]}}, (7,)),  # the driver has other numbers
        ({"own_pids": [9], "pids_before": {"GPU-b": None}}, ()),
        ({"own_pids": None, "pids_before": {"GPU-b": [7, 6]}}, (6, 7)),
        ({"own_pids": [7], "pids_before": {"GPU-b": [7]}}, (6,)),
    ],
)
def test_other_processes_are_those_on_the_gpu_that_are_not_the_programs(
    facts: dict[str, Any], foreign: tuple[int, ...]
) -> None:
    found = readings_of(journal_of_a_card(idle_w={"GPU-b": 70.0}, **facts), 1)
    assert (found.foreign, found.idle_w) == (foreign, 70.0)
    assert found.power_w.tolist() == [10, 20, 30]  # no instant power


@pytest.mark.parametrize(
    ("changes", "is_said"),
    [
        ({"temperature_c": np.where(np.arange(100) < 50, 40.0, 45.0)}, False),
        ({"temperature_c": np.where(np.arange(100) < 50, 40.0, 46.0)}, True),
        ({"temperature_c": np.full(100, np.nan)}, False),
        ({"ticks": steady_ticks(throttled_ns=MS)}, False),  # 20 ms of 2 s
        ({"ticks": steady_ticks(throttled_ns=MS + 1)}, True),
        ({"power_w": np.full(100, 439.9)}, False),  # within twice the error of the sensor
        ({"power_w": np.full(100, 440.5)}, True),
        ({"power_w": np.full(100, 359.5)}, True),
        ({"power_w": np.append(np.full(99, 300.0), np.nan)}, True),
    ],
)
def test_a_disturbance_is_said_beyond_its_limit(changes: dict[str, Any], is_said: bool) -> None:
    found = measure_pass(-1, edges(), readings(**changes))
    assert len(found.notes) == is_said
    assert all("the GPU" in note for note in found.notes)


def test_readings_that_are_not_there_are_none() -> None:
    found = measure_pass(1, edges(), None)
    assert found.energy_j is None
    assert "could not be read" in found.notes[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"power_w": np.full(100, 90.0)}, "is stuck at 90.0 W, while its energy counter shows 400.0 W"),
        ({"foreign": (77,)}, "Another process used cuda:0 during the energy measurement (pid 77)"),
        ({"temperature_c": np.linspace(40, 60, 100)}, "°C warmer"),
        (
            {
                "ticks": tuple(
                    Tick(n * TICK_NS, round(n * WATTS * TICK_NS / 1e6), 3 * MS, n * 50 * MS) for n in range(50)
                )
            },
            "The power limit lowered the clock of cuda:0 for 1.00 s",
        ),
    ],
)
def test_what_disturbed_the_pass_is_said(changes: dict[str, Any], words: str) -> None:
    found = measure_pass(0, edges(), readings(**changes))
    assert found.energy_j == pytest.approx(WATTS * 2, rel=1e-3)
    assert [words in note for note in found.notes] == [True]


QUARTER = EnergyCounter(250 * MS, 249 * MS, 251 * MS, MS, MS)


def test_the_counter_of_another_vendor_is_kept_with_what_was_read_of_it(tmp_path: Path) -> None:
    card = SimulatedCard(RealClock(), counter=QUARTER)
    (tmp_path / "rank-0").mkdir()
    (tmp_path / "rank-0" / ENERGY_MARKER).write_text(json.dumps({"cards": [card.uuid]}))
    with EnergyMeter(tmp_path, [card], until_end=False, pid=lambda: None) as meter:
        meter.look()
    journal = read_checked(tmp_path / SAMPLE_JOURNALS / ENERGY_JOURNAL)
    assert readings_of(journal, 0).counter == QUARTER
    del journal.facts["energy_counters"]  # as in a run of before
    assert readings_of(journal, 0).counter == NVML_COUNTER


def test_a_window_is_counted_in_the_ticks_of_its_own_counter() -> None:
    ticks = tuple(Tick(n * 250 * MS, round(n * WATTS * 250), 3 * MS) for n in range(20))
    found = measure_pass(0, edges(1000, 3000), readings(ticks=ticks, counter=QUARTER))
    assert found.ticks == 8
    assert found.energy_j == pytest.approx(WATTS * 2.0)


@pytest.mark.parametrize(("ticks", "counted"), [(0, False), (1, False), (2, True)])
def test_two_ticks_of_the_counter_are_needed_and_enough(ticks: int, counted: bool) -> None:
    found = measure_pass(0, edges(), readings(ticks=steady_ticks(throttled_ns=0)[:ticks]))
    assert (found.source == COUNTER) is counted


@pytest.mark.parametrize(("start_ms", "side"), [(999, "before"), (1000, "after"), (1001, "after")])
def test_an_idle_time_is_after_the_pass_if_it_does_not_begin_before_it(start_ms: int, side: str) -> None:
    idle_ns = ((start_ms * MS, (start_ms + 500) * MS),)
    found = measure_pass(0, replace(edges(), idle_ns=idle_ns), readings())
    powers = {"before": found.base_before_w, "after": found.base_after_w}
    assert powers.pop(side) == pytest.approx(WATTS)
    assert list(powers.values()) == [None]


@pytest.mark.parametrize(
    ("reading_ms", "kept"),
    [
        ((2, 2, 2, 6, 7), (0, 1, 2, 3)),  # three times the usual time is not late yet
        ((2, 7), (0, 1)),
        ((1, 1, 50, 60), (0, 1, 2, 3)),
        ((1, 1, 1, 50, 60), (0, 1, 2)),
        ((4,), (0,)),
        ((), ()),
    ],
)
def test_ticks_that_were_read_late_are_left_out_if_two_remain(
    reading_ms: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    ticks = [Tick(number * TICK_NS, number, ms * MS) for number, ms in enumerate(reading_ms)]
    assert tuple(tick.energy_mj for tick in _exact(ticks)) == kept
