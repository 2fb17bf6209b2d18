"""Energy from tick to tick: exact for steady power wherever the edges lie, and None below the counter's resolution."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.collect.edges import EdgeFinder
from gpuledger.collect.ticks import TICK_NS, Edge, find_edge, measure_window

WATTS = 300.0
MS = 1_000_000


class Card:
    """A counter that ticks every 100.1 ms under steady power, which moves with it; each read takes ``read_ns``."""

    index = 0
    jitter_ns = 0

    def __init__(self, read_ns: int = 3 * MS, *, power_moves: bool = True) -> None:
        self.now_ns = self.reads = 0
        self._read_ns = read_ns
        self._power_moves = power_moves

    def read_energy_mj(self) -> int | None:
        self.now_ns += self._read_ns
        self.reads += 1
        return round(self._ticks() * WATTS * TICK_NS / 1e6)

    def _ticks(self) -> int:
        """Every second tick comes late."""
        ticks = self.now_ns // TICK_NS
        return ticks - (ticks % 2 and self.now_ns % TICK_NS < self.jitter_ns)

    def read_beat(self) -> int | None:
        self.now_ns += MS // 50
        return round(WATTS * 1e3) + self._ticks() % 7 * self._power_moves

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
    length_ns=st.integers(400 * MS, 60_000 * MS),
    read_ns=st.integers(MS // 10, 6 * MS),
    power_moves=st.booleans(),
)
def test_steady_power_is_measured_within_what_is_stated(
    start_ns: int, length_ns: int, read_ns: int, power_moves: bool
) -> None:
    card = Card(read_ns, power_moves=power_moves)
    start = card.edge(start_ns)
    window = measure_window(start, card.edge(start_ns + length_ns))
    expected_j = WATTS * length_ns / 1e9
    assert window.energy_j is not None
    assert window.uncertainty_j is not None
    look_ns = 3 * MS if power_moves else 2 * read_ns + 3 * MS
    assert abs(window.energy_j - expected_j) <= WATTS * look_ns / 1e9 + 0.002
    assert window.uncertainty_j < WATTS * (2 * 1_900_000 + 2 * look_ns) / 1e9 + 0.01 * expected_j
    assert window.throttled_ns == 0


def test_a_short_window_is_below_the_resolution_and_not_zero() -> None:
    card = Card()
    start = card.edge(0)
    window = measure_window(start, card.edge(start.tick_ns + 10 * MS))
    assert window.ticks < 2
    assert window.energy_j is None
    assert window.uncertainty_j is None


def test_an_edge_takes_two_reads_of_the_counter() -> None:
    card = Card()
    for number in range(1, 20):
        before = card.reads
        edge = card.edge(number * 277 * MS)
        assert card.reads - before <= 3 + (edge.tick_ns % TICK_NS < 10 * MS)
        assert edge.power_w == pytest.approx(WATTS)
        assert min(edge.tick_ns % TICK_NS, TICK_NS - edge.tick_ns % TICK_NS) < 2 * MS


@pytest.mark.parametrize("jitter_ns", [0, 4 * MS])
def test_an_edge_after_another_takes_one_read_of_the_counter(jitter_ns: int) -> None:
    """Though a tick comes early and the next one late, one lies between them."""
    card: Card = Card()
    card.now_ns, card.jitter_ns = 30 * MS, jitter_ns
    found: list[Edge] = []
    finder = EdgeFinder(card, lambda: card.now_ns)
    for number in range(20):
        reads = card.reads
        finder.want(card.now_ns, found.append)
        while finder.due_ns is not None:
            card.now_ns = max(card.now_ns, finder.due_ns)
            finder.read()
        assert card.reads - reads <= (1 if number else 2)
    assert [edge.power_w for edge in found] == [pytest.approx(WATTS)] * 20


@pytest.mark.parametrize("power_moves", [True, False])
def test_a_processor_that_is_short_makes_an_edge_uncertain_and_not_unknown(power_moves: bool) -> None:
    """Every look comes 30 ms late, as beside a thread that holds the interpreter."""
    card = Card(power_moves=power_moves)
    found = find_edge(0, card, lambda: card.now_ns, lambda s: card.sleep(s + 0.03))
    assert found is not None
    assert found.reading_ns > 30 * MS
    assert found.power_w == pytest.approx(WATTS)


@pytest.mark.parametrize("value", [5, None])
@pytest.mark.parametrize("power_moves", [True, False])
def test_a_counter_that_stands_still_or_is_not_there_has_no_edge(value: int | None, power_moves: bool) -> None:
    card = Card(power_moves=power_moves)

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
