"""Joules of one call: exact on a GPU whose counter is simulated, within its own uncertainty at any moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import GpuLedgerError
from gpuledger.integrations.step_energy import measure_call_energy


class Card:
    """A clock, and a counter that shows the joules used up to the last tick of 100 ms."""

    def __init__(self, watts: float, call_s: float, offset_s: float = 0.0) -> None:
        self.watts, self.call_s, self.now_s = watts, call_s, offset_s

    def clock(self) -> float:
        return self.now_s

    def call(self) -> None:
        self.now_s += self.call_s

    def read_j(self) -> float:
        self.now_s += 0.0035
        return self.watts * (self.now_s // 0.1) * 0.1


@given(watts=st.floats(50, 1000), call_s=st.floats(0.001, 0.09), offset_s=st.floats(0, 0.1))
def test_a_call_costs_what_the_card_takes_while_it_runs(watts: float, call_s: float, offset_s: float) -> None:
    card = Card(watts, call_s, offset_s)
    found = measure_call_energy(card.call, card.read_j, 5.0, card.clock)
    whole_j = watts * found.seconds / found.calls
    assert found.joules == pytest.approx(whole_j, rel=0.05)
    assert found.seconds >= 5.0


def test_a_counter_that_stands_still_is_said() -> None:
    card = Card(100, 0.01)
    with pytest.raises(GpuLedgerError, match="does not change"):
        measure_call_energy(card.call, lambda: 5.0, 2.0, card.clock)
