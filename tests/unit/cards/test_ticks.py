"""Energy from tick to tick: exact for steady power wherever the edges lie, and None below the counter's resolution."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from present import present
from simulated_card import TICK_NS, Clock, SimulatedCard

from gpuledger.cards.card import BareCard
from gpuledger.cards.energy_edges import EdgeFinder, find_edge
from gpuledger.cards.energy_windows import EnergyWindows
from gpuledger.cards.tick_phase import TickPhase
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

WATTS = 300.0
MS = 1_000_000
EVEN = EnergyCounter(100 * MS, 90 * MS, 110 * MS, 0, 7)
"""A counter of which a period is known to 20 ms before anything was seen."""


class Card(BareCard):
    """A counter that ticks every ``period_ns`` under steady power; each read takes ``read_ns``, and looks halfway."""

    jitter_ns = 0

    def __init__(self, read_ns: int = 3 * MS, period_ns: int = TICK_NS, counter: EnergyCounter = NVML_COUNTER) -> None:
        super().__init__(0, "Ticking", "GPU-ticking", counter=counter)
        self.now_ns = self.reads = 0
        self.period_ns = period_ns
        self.read_ns = read_ns

    def read_energy_mj(self) -> int | None:
        self.now_ns += self.read_ns // 2
        energy_mj = round(self._ticks() * WATTS * self.period_ns / 1e6)
        self.now_ns += self.read_ns - self.read_ns // 2
        self.reads += 1
        return energy_mj

    def _ticks(self) -> int:
        """Every second tick comes late."""
        ticks = self.now_ns // self.period_ns
        return ticks - (ticks % 2 and self.now_ns % self.period_ns < self.jitter_ns)

    def read_throttled_ns(self) -> int | None:
        return 0

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def edge(self, at_ns: int) -> Edge:
        self.now_ns = max(self.now_ns, at_ns)
        found = find_edge(at_ns, self, lambda: self.now_ns, self.sleep)
        assert found is not None
        return found


@given(
    start_ns=st.integers(0, 300 * MS),
    lengths_ns=st.lists(st.integers(400 * MS, 60_000 * MS), min_size=1, max_size=6),
    read_ns=st.integers(MS // 10, 6 * MS),
    period_ns=st.sampled_from([99_950_000, 100_000_000, 100_003_000, TICK_NS]),
)
def test_steady_power_is_measured_within_what_is_stated(
    start_ns: int, lengths_ns: list[int], read_ns: int, period_ns: int
) -> None:
    """However often the GPU was asked before, and how long ago."""
    card = Card(read_ns, period_ns)
    for length_ns in lengths_ns:
        start_ns = max(start_ns, card.now_ns)
        start = card.edge(start_ns)
        start_ns += length_ns
        window = measure_window(start, card.edge(start_ns))
        expected_j = WATTS * length_ns / 1e9
        assert window.energy_j is not None
        assert window.uncertainty_j is not None
        off_j = abs(window.energy_j - expected_j)
        assert off_j <= window.uncertainty_j
        assert window.uncertainty_j < WATTS * (2 * 1_900_000 + 2 * read_ns + 12 * MS) / 1e9 + 0.01 * expected_j
        assert window.throttled_ns == 0


@given(phase_ns=st.integers(0, TICK_NS), before_w=st.integers(60, 700), after_w=st.integers(60, 700))
def test_an_edge_stands_where_the_counter_ticks_whatever_the_power_does(
    phase_ns: int, before_w: int, after_w: int
) -> None:
    """A window that begins where the load does holds the load's energy, not some of the idle GPU's."""
    card, turn_ns = Card(), 3_000 * MS + phase_ns

    def energy_mj() -> int:
        tick_ns = card.now_ns // TICK_NS * TICK_NS
        card.now_ns += 3 * MS
        card.reads += 1
        idle_ns, load_ns = min(tick_ns, turn_ns), max(tick_ns - turn_ns, 0)
        return round((idle_ns * before_w + load_ns * after_w) / 1e6)

    card.read_energy_mj = energy_mj  # type: ignore[method-assign]
    card.edge(500 * MS)
    start = card.edge(turn_ns)
    window = measure_window(start, card.edge(turn_ns + 2_000 * MS))
    assert window.energy_j is not None
    assert window.uncertainty_j is not None
    assert abs(window.energy_j - 2.0 * after_w) <= window.uncertainty_j + abs(after_w - before_w) * 0.05


def test_a_short_window_is_below_the_resolution_and_not_zero() -> None:
    card = Card()
    start = card.edge(0)
    window = measure_window(start, card.edge(start.tick_ns + 10 * MS))
    assert window.ticks < 2
    assert window.energy_j is None
    assert window.uncertainty_j is None


def test_an_edge_takes_two_reads_of_the_counter() -> None:
    """Once it is known when it ticks: that is looked for once, and looked after."""
    card, reads = Card(), []
    for number in range(1, 60):
        before = card.reads
        edge = card.edge(number * 277 * MS)
        reads.append(card.reads - before)
        assert edge.power_w == pytest.approx(WATTS)
        assert min(edge.tick_ns % TICK_NS, TICK_NS - edge.tick_ns % TICK_NS) < 4 * MS
    assert max(reads[:5]) <= 35
    assert sorted(reads[5:])[len(reads[5:]) // 2] == 2
    assert max(reads[5:]) <= 7


@pytest.mark.parametrize("jitter_ns", [0, MS])
def test_an_edge_after_another_takes_one_read_of_the_counter(jitter_ns: int) -> None:
    """Though a tick comes early and the next one late, one lies between them."""
    card: Card = Card()
    card.now_ns, card.jitter_ns = 30 * MS, jitter_ns
    found: list[Edge | None] = []
    reads = []
    finder = EdgeFinder(card, lambda: card.now_ns)
    for _ in range(60):
        before = card.reads
        finder.want(card.now_ns, found.append)
        while finder.due_ns is not None:
            card.now_ns = max(card.now_ns, finder.due_ns)
            finder.read()
        reads.append(card.reads - before)
    assert sorted(reads)[len(reads) // 2] == 1
    assert sum(reads) <= 60 + 35 + 30
    assert [present(edge).power_w for edge in found] == [pytest.approx(WATTS)] * 60


def test_a_processor_that_is_short_makes_an_edge_uncertain_and_not_unknown() -> None:
    """Every look comes 30 ms late, as beside a thread that holds the interpreter."""
    card = Card()
    found = find_edge(0, card, lambda: card.now_ns, lambda s: card.sleep(s + 0.03))
    assert found is not None
    assert found.reading_ns > 30 * MS
    assert found.power_w == pytest.approx(WATTS)


@pytest.mark.parametrize("slow_ns", [150 * MS, 700 * MS, 3000 * MS])
def test_one_read_that_takes_longer_than_a_tick_keeps_no_later_edge_waiting(slow_ns: int) -> None:
    """As of a driver that stands still for a moment, once the ticks are known."""
    card = Card()
    finder, found = EdgeFinder(card, lambda: card.now_ns), list[Edge | None]()
    for number in range(16):
        card.now_ns += 370 * MS
        began_ns = card.now_ns
        finder.want(began_ns, found.append)
        card.read_ns = slow_ns if number == 9 else 3 * MS
        while finder.due_ns is not None and card.now_ns < began_ns + slow_ns + 500 * MS:
            card.now_ns = max(card.now_ns, finder.due_ns)
            finder.read()
            card.read_ns = 3 * MS
        assert len(found) == number + 1


def test_a_counter_that_moves_its_ticks_is_learnt_anew() -> None:
    """As after a suspended machine, or a clock that was set."""
    card = Card()
    for number in range(1, 6):
        card.edge(number * 300 * MS)
    card.now_ns += 47 * MS
    shifted_ns = 47 * MS
    read = card.read_energy_mj

    def read_energy_mj() -> int | None:
        card.now_ns -= shifted_ns
        try:
            return read()
        finally:
            card.now_ns += shifted_ns

    card.read_energy_mj = read_energy_mj  # type: ignore[method-assign]
    edge = [card.edge(number * 300 * MS) for number in range(30, 40)][-1]
    off_ns = (edge.tick_ns - shifted_ns) % TICK_NS
    assert min(off_ns, TICK_NS - off_ns) <= edge.reading_ns


@pytest.mark.parametrize("value", [5, None])
def test_a_counter_that_stands_still_or_is_not_there_has_no_edge(value: int | None) -> None:
    card = Card()

    def read_energy_mj() -> int | None:
        card.now_ns += MS
        return value

    card.read_energy_mj = read_energy_mj  # type: ignore[method-assign]
    assert find_edge(0, card, lambda: card.now_ns, card.sleep) is None
    assert card.now_ns < 2_000 * MS


def test_a_counter_that_was_reset_is_not_negative_energy() -> None:
    early = Edge(0, 10 * MS, 9_000_000, MS, WATTS, None)
    late = Edge(1_000 * MS, 1_010 * MS, 5, MS, WATTS, None)
    assert measure_window(early, late).energy_j is None


@pytest.mark.parametrize("throttled", [(None, 5), (5, None)])
def test_throttling_that_was_not_read_is_unknown(throttled: tuple[int | None, int | None]) -> None:
    early = Edge(0, 10 * MS, 0, MS, WATTS, throttled[0])
    late = Edge(1_000 * MS, 1_010 * MS, 300_000, MS, WATTS, throttled[1])
    assert measure_window(early, late).throttled_ns is None


@pytest.mark.parametrize("period_ns", [1 * MS, 10 * MS, 1_000 * MS])
def test_a_counter_of_another_vendor_ticks_at_its_own_pace(period_ns: int) -> None:
    """Steady power is measured within what is stated, and within few ticks of the window's edges."""
    read_ns = period_ns // 50
    counter = EnergyCounter(period_ns, period_ns * 999 // 1000, period_ns * 1001 // 1000, period_ns // 50, read_ns)
    card = Card(read_ns, period_ns, counter)
    for number in range(1, 6):
        start_ns = number * 40 * period_ns
        start = card.edge(start_ns)
        window = measure_window(start, card.edge(start_ns + 25 * period_ns))
        assert window.energy_j is not None
        assert window.uncertainty_j is not None
        assert window.ticks == pytest.approx(25, abs=1)
        assert abs(window.energy_j - WATTS * 25 * period_ns / 1e9) <= window.uncertainty_j + 0.002
        assert window.uncertainty_j < WATTS * 2 * period_ns / 1e9 + 0.002


@pytest.mark.parametrize(
    "facts", [None, [], {}, {"period_ns": 0}, dict.fromkeys(vars(NVML_COUNTER), "x"), vars(NVML_COUNTER) | {"a": 1}]
)
def test_a_journal_that_does_not_describe_its_counter_has_nvmls(facts: object) -> None:
    assert EnergyCounter.of_facts(facts) == NVML_COUNTER


@pytest.mark.parametrize(
    ("facts", "is_possible"),
    [
        ({"period_ns": 0}, False),
        ({"period_ns": 1}, True),
        ({"period_ns": 10**12 - 1}, True),
        ({"period_ns": 10**12}, False),
        ({"jitter_ns": -1}, False),
        ({"jitter_ns": 0}, True),
        ({"jitter_ns": 10**12 - 1}, True),
        ({"jitter_ns": 10**12}, False),
    ],
)
def test_a_counter_is_updated_and_within_a_thousand_seconds(facts: dict[str, int], is_possible: bool) -> None:
    told = vars(EVEN) | facts
    assert EnergyCounter.of_facts(told) == (EnergyCounter(**told) if is_possible else NVML_COUNTER)


def test_a_journal_that_describes_its_counter_has_that() -> None:
    own = EnergyCounter(MS, MS, MS, 0, 7)
    assert EnergyCounter.of_facts(vars(own)) == own
    assert EnergyCounter.of_facts(vars(own) | {"period_ns": 10**400}) == NVML_COUNTER
    assert EnergyCounter.of_facts(vars(own) | {"jitter_ns": -1}) == NVML_COUNTER


def test_a_tick_before_the_first_that_was_seen_lies_a_period_earlier() -> None:
    """The period is not known yet, so the earlier tick is as uncertain as it: the longest and the shortest before."""
    phase = TickPhase(NVML_COUNTER)
    seen_ns = 10_000 * MS
    assert phase.saw(seen_ns, seen_ns + MS) == (seen_ns, seen_ns + MS)
    at_ns = seen_ns - NVML_COUNTER.longest_ns
    assert phase.last_before(at_ns) == (seen_ns - NVML_COUNTER.longest_ns, seen_ns + MS - NVML_COUNTER.shortest_ns)
    assert phase.next_after(at_ns) == (seen_ns, seen_ns + MS)
    assert phase.next_after(seen_ns + MS) == (
        seen_ns + NVML_COUNTER.shortest_ns,
        seen_ns + MS + NVML_COUNTER.longest_ns,
    )


def test_a_phase_is_confirmed_by_a_tick_that_came_as_predicted_and_until_it_is_forgotten() -> None:
    phase = TickPhase(NVML_COUNTER)
    assert not phase.is_confirmed
    phase.saw(0, MS)
    assert not phase.is_confirmed
    phase.saw(TICK_NS, TICK_NS + MS)
    assert phase.is_confirmed
    phase.forget()
    assert not phase.is_confirmed
    assert phase.next_after(2 * TICK_NS) is None


def test_a_period_is_never_known_better_than_clocks_are() -> None:
    """After an hour of exact ticks, those of the next seconds are certain to 40 millionths of the time."""
    phase = TickPhase(NVML_COUNTER)
    for count in range(36_000):
        phase.saw(count * TICK_NS - 1, count * TICK_NS + 1)
    last_ns = 35_999 * TICK_NS
    for periods in (10, 1_000):
        low_ns, high_ns = present(phase.next_after(last_ns + periods * TICK_NS - TICK_NS // 2))
        assert low_ns <= last_ns + periods * TICK_NS <= high_ns
        assert high_ns - low_ns == pytest.approx(40e-6 * periods * TICK_NS, rel=0.1)


def test_the_power_around_both_edges_is_what_is_uncertain() -> None:
    """A window of ten seconds at 250 W on average, which began at 200 W and ended at 300 W, between two ticks each."""
    counter = replace(NVML_COUNTER, period_ns=100 * MS, jitter_ns=0)
    start = Edge(60 * MS, 100 * MS, 0, 0, 200.0, 0, None, counter)
    end = Edge(10_070 * MS, 10_100 * MS, 2_500_000, 0, 300.0, 0, None, counter)
    found = measure_window(start, end)
    possible_j = 0.06 * 200  # what came outside of the window in the first period, if its power was even
    assert found.energy_j == pytest.approx(2_500 + 0.04 * 200 - 0.03 * 300 + possible_j / 2)
    assert found.uncertainty_j is not None
    assert possible_j / 2 + 0.07 * 50 < found.uncertainty_j < possible_j / 2 + 0.07 * 300
    last_j = min(BURSTS * 0.07 * 50, 0.03 * 300)  # of the last period 0.07 s lie inside and 0.03 s outside
    assert found.uncertainty_j == pytest.approx(possible_j / 2 + last_j)
    assert found.ticks == 100
    known = measure_window(replace(start, off_w=10.0), replace(end, off_w=20.0))
    assert known.uncertainty_j == pytest.approx(0.04 * 10 + 0.03 * 20)
    jitter = replace(counter, jitter_ns=MS)
    shaky = measure_window(
        replace(start, off_w=0.0, reading_ns=2 * MS, counter=jitter), replace(end, off_w=0.0, counter=jitter)
    )
    assert shaky.uncertainty_j == pytest.approx(math.hypot(0.002 * 200, 0.001 * 300))


def test_an_edge_is_no_more_uncertain_than_what_its_period_can_hold() -> None:
    """At an edge with less power than on average, the rest of the period cannot have had more than its own energy."""
    counter = replace(NVML_COUNTER, period_ns=100 * MS, jitter_ns=0)
    start = Edge(10 * MS, 100 * MS, 0, 0, 50.0, 0, None, counter)
    end = Edge(10_100 * MS, 10_100 * MS, 5_000_000, 0, 500.0, 0, 0.0, counter)
    assert measure_window(start, end).uncertainty_j == pytest.approx(0.01 * 50 / 2)


def test_two_ticks_bound_the_period_and_nothing_is_added_to_what_they_leave_open() -> None:
    phase = TickPhase(NVML_COUNTER)
    phase.saw(0, MS)
    low_ns, high_ns = phase.saw(TICK_NS, TICK_NS + MS)
    shortest_ns = max(low_ns - MS, NVML_COUNTER.shortest_ns)
    longest_ns = min(high_ns, NVML_COUNTER.longest_ns)
    assert phase.next_after(TICK_NS + TICK_NS // 2) == (low_ns + shortest_ns, high_ns + longest_ns)


def test_a_tick_at_the_very_end_of_its_predicted_span_confirms_it() -> None:
    phase = TickPhase(NVML_COUNTER)
    phase.saw(0, MS)
    end_ns = MS + NVML_COUNTER.longest_ns
    assert phase.saw(end_ns, end_ns + MS) == (end_ns, end_ns)
    assert phase.is_confirmed
    late = TickPhase(NVML_COUNTER)
    late.saw(0, MS)
    assert late.saw(end_ns + 1, end_ns + MS) == (end_ns + 1, end_ns + MS)
    assert not late.is_confirmed


def test_no_power_is_known_before_the_first_tick() -> None:
    """In the first and in the last period an edge has that period's power, whatever the powers after or before are."""
    energies_mj = (0, 20_000, 30_000, 90_000)
    ticks = tuple(Tick(place * 100 * MS, energy_mj, 0, None) for place, energy_mj in enumerate(energies_mj))
    for at_ms, power_w in ((50, 200.0), (250, 600.0)):
        edge = present(edge_at(ticks, at_ms * MS))
        assert (edge.power_w, edge.off_w) == (power_w, None)


@pytest.mark.parametrize(("delayed_frac", "longest_ms"), [(0.05, 60), (0.2, 200), (0.5, 400)])
def test_reads_that_a_busy_machine_delays_make_a_window_less_certain_and_not_wrong(
    delayed_frac: float, longest_ms: int
) -> None:
    """The counter is read at random times, up to several ticks late. Power is steady, so that energy is known."""
    off = [
        (abs(present(window.energy_j) - WATTS * (window.end_ns - window.start_ns) / 1e9), window.uncertainty_j)
        for seed in range(60)
        for window in _delayed_windows(random.Random(seed), delayed_frac, longest_ms)
        if window.energy_j is not None
    ]
    assert len(off) > 200
    wrong = [(off_j, uncertainty_j) for off_j, uncertainty_j in off if off_j > present(uncertainty_j) + 0.2]
    assert len(wrong) <= 0.01 * len(off), wrong


def _delayed_windows(rng: random.Random, delayed_frac: float, longest_ms: int) -> list[WindowEnergy]:
    """Return the energy of windows on a machine that delays some reads of the counter, before or during the read."""
    found: list[WindowEnergy] = []
    clock = Clock()
    clock.spend_ns(rng.randrange(1_000 * MS))

    def delay() -> None:
        if rng.random() < delayed_frac:
            clock.spend_ns(rng.randrange(longest_ms * MS))

    class Delayed(SimulatedCard):
        def read_energy_mj(self) -> int | None:
            delay()
            energy_mj = super().read_energy_mj()
            delay()
            return energy_mj

    windows = EnergyWindows(
        [Delayed(clock, read_ns=3 * MS, watts=lambda _: WATTS)], lambda *kept: found.append(kept[2]), clock.time_ns
    )

    def read_until(end_ns: int) -> None:
        while windows.due_ns is not None and windows.due_ns <= end_ns:
            clock.now_ns = max(clock.now_ns, windows.due_ns)
            delay()
            windows.read()
        clock.now_ns = max(clock.now_ns, end_ns)
        delay()

    for number in range(6):
        start_ns = clock.now_ns + rng.randrange(300 * MS)
        end_ns = start_ns + rng.randrange(250 * MS, 3_000 * MS)
        read_until(start_ns)
        windows.begin(number, "", start_ns)
        read_until(end_ns)
        windows.end(number, end_ns)
    read_until(clock.now_ns + 3_000 * MS)
    return found


def test_a_tick_that_could_be_either_of_two_is_not_taken_for_one() -> None:
    phase = TickPhase(NVML_COUNTER)
    phase.saw(0, MS)
    both = (50 * MS, 250 * MS)
    assert phase.saw(*both) == both
    assert phase.next_after(50 * MS) == (NVML_COUNTER.shortest_ns, MS + NVML_COUNTER.longest_ns)


def seen_at_0() -> TickPhase:
    """Return the phase of a counter that ticked at 0."""
    phase = TickPhase(EVEN)
    phase.saw(0, 0)
    return phase


def test_a_tick_is_known_to_two_fifths_of_a_period_and_no_worse() -> None:
    phase = seen_at_0()
    assert phase.next_after(109 * MS) == (90 * MS, 110 * MS)
    assert phase.next_after(110 * MS) == (180 * MS, 220 * MS)
    assert phase.next_after(220 * MS) is None
    assert phase.last_before(220 * MS) == (180 * MS, 220 * MS)
    assert phase.last_before(110 * MS) == (90 * MS, 110 * MS)


@pytest.mark.parametrize(
    ("between_ms", "taken_ms"),
    [
        ((80, 89), None),  # before the tick that was expected: it moved
        ((80, 90), (90, 90)),
        ((80, 105), (90, 105)),
        ((105, 130), (105, 110)),
        ((110, 120), (110, 110)),
        ((100, 179), (100, 110)),
        ((100, 180), None),  # the one after could be it as well
    ],
)
def test_a_tick_is_where_it_was_seen_and_where_it_was_expected(
    between_ms: tuple[int, int], taken_ms: tuple[int, int] | None
) -> None:
    phase = seen_at_0()
    after_ns, before_ns = (ms * MS for ms in between_ms)
    span = phase.saw(after_ns, before_ns)
    assert phase.is_confirmed is (taken_ms is not None)
    assert span == (tuple(ms * MS for ms in taken_ms) if taken_ms else (after_ns, before_ns))


def test_two_ticks_tell_the_power_at_an_edge_and_one_does_not() -> None:
    ticks = (Tick(0, 0, 0, None), Tick(100 * MS, 20_000, MS, 7))
    edge = present(edge_at(ticks, 50 * MS))
    assert (edge.tick_ns, edge.power_w, edge.off_w, edge.throttled_ns) == (100 * MS, 200.0, None, 7)
    assert edge_at(ticks[:1], 50 * MS) is None
    assert edge_at((), 50 * MS) is None
