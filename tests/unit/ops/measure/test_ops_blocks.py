"""Blocks: timed on a real CPU, and energy from a GPU whose counter and speed are known exactly."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from present import present

from gpuledger.cards.card import BareCard, SensorReading
from gpuledger.model.energy_window import Edge
from gpuledger.ops.database.method import How, Method
from gpuledger.ops.measure import blocks
from gpuledger.ops.measure.blocks import Load, NoCounterError, base_power_w, between_ticks, energy_blocks, time_blocks
from gpuledger.ops.measure.runners import CpuRunner, first_line, kernel_names, make_runner

QUICK = Method(warm_up_ns=1_000_000, block_ns=500_000, gap_ns=0, settle_s=0.02, window_s=0.2, base_window_s=0.25)
TICK_S = 0.1001


@dataclass
class Add:
    x: torch.Tensor
    restored: int = 0

    def __call__(self) -> torch.Tensor:
        return self.x.add_(1)

    def restore(self) -> None:
        self.restored += 1
        self.x.zero_()


class Clock:
    """A clock that only reading and sleeping move."""

    def __init__(self) -> None:
        self.now_ns = 10**18

    def __call__(self) -> int:
        return self.now_ns

    def sleep(self, time_s: float) -> None:
        self.now_ns += round(time_s * 1e9)


class TickingCard(BareCard):
    """A GPU at 300 W while ``busy`` and 100 W otherwise, its counter moving every 100.1 ms."""

    def __init__(
        self,
        watts: float = 300.0,
        *,
        moves: bool = True,
        throttled: bool = False,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(0, "Ticking", "GPU-ticking")
        self.watts, self.moves, self.throttled = watts, moves, throttled
        self.clock_ns, self.sleep, self.begun_ns = clock_ns, sleep, clock_ns()

    def read_energy_mj(self) -> int:
        self.sleep(0.003)
        ticks = int((self.clock_ns() - self.begun_ns) / 1e9 / TICK_S) if self.moves else 0
        return round(1e6 + ticks * TICK_S * self.watts * 1e3)

    def read_throttled_ns(self) -> int:
        return time.monotonic_ns() // 2 if self.throttled else 0

    def read_sensors(self) -> SensorReading:
        return SensorReading(sm_clock_mhz=1980, temperature_c=55, utilization_frac=0.98)


class Sleeper:
    """Takes two milliseconds a call."""

    how, unit_calls, copies = How.CPU, 1, 1

    def refresh(self) -> None:
        pass

    def time_units(self, units: int) -> float:
        time.sleep(0.002 * units)
        return 2e6 * units

    def submit(self, units: int) -> Callable[[], None]:
        self.time_units(units)
        return lambda: None


def test_blocks_are_counted_and_agree_with_the_calls_they_hold() -> None:
    runner = CpuRunner([Add(torch.zeros(64)), Add(torch.zeros(64))])
    found = time_blocks(runner, QUICK, None)
    assert QUICK.least_blocks <= len(found) <= QUICK.most_blocks
    assert all(block.calls % 2 == 0 and block.call_ns > 0 for block in found)
    assert all(block.call_j is None and block.sm_clock_mhz is None for block in found)


def test_inputs_that_are_written_are_put_back_before_each_block() -> None:
    call = Add(torch.zeros(8))
    found = time_blocks(CpuRunner([call]), QUICK, None)
    assert call.restored == len(found)
    assert float(call.x[0]) == found[-1].calls  # the last block alone has counted


def test_a_block_says_what_the_card_showed_and_whether_the_cap_held_it() -> None:
    found = time_blocks(Sleeper(), QUICK, TickingCard(throttled=True))
    assert {(block.sm_clock_mhz, block.temperature_c, block.busy_frac) for block in found} == {(1980, 55, 0.98)}
    assert all(block.is_throttled for block in found)
    assert not any(block.is_throttled for block in time_blocks(Sleeper(), QUICK, TickingCard()))


def test_energy_is_the_counters_joules_over_the_calls_between_its_ticks() -> None:
    found = energy_blocks(Sleeper(), 2e6, replace(QUICK, window_s=0.5, most_windows=2), TickingCard(300.0))
    assert len(found) == 2
    for block in found:
        assert present(block.ticks) >= 2
        power_w = present(block.power_w)
        assert power_w > 0  # which power, between_ticks tells: a loaded machine sees a tick late
        assert block.call_j == pytest.approx(power_w * block.call_ns / 1e9)


def test_between_two_ticks_nothing_is_added_or_taken_off() -> None:
    start = Edge(at_ns=5, tick_ns=10**9, energy_mj=7_000, reading_ns=10**6, power_w=999.0, throttled_ns=10)
    end = Edge(at_ns=6, tick_ns=3 * 10**9, energy_mj=607_000, reading_ns=10**6, power_w=1.0, throttled_ns=30)
    window = between_ticks(start, end)
    assert (window.energy_j, window.ticks, window.throttled_ns) == (600.0, 20, 20)


def test_base_power_is_that_of_the_waiting_card(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(blocks, "time", clock)
    card = TickingCard(100.0, clock_ns=clock, sleep=clock.sleep)
    assert base_power_w(QUICK, card, clock) == pytest.approx(100.0, rel=0.05)
    assert base_power_w(QUICK, TickingCard(moves=False)) is None


def test_a_counter_that_stands_still_is_said() -> None:
    with pytest.raises(NoCounterError, match="does not change"):
        energy_blocks(Sleeper(), 2e6, QUICK, TickingCard(moves=False))


def test_what_stops_a_load_reaches_who_measures() -> None:
    class Broken(Sleeper):
        def submit(self, units: int) -> Callable[[], None]:
            raise RuntimeError("the operator failed")

    with pytest.raises(RuntimeError, match="the operator failed"):
        energy_blocks(Broken(), 2e6, QUICK, TickingCard())


def test_a_load_ends_with_its_block_and_counts_its_calls() -> None:
    before = threading.enumerate()
    with Load(Sleeper(), 2e6) as load:
        start_ns = time.time_ns()
        time.sleep(0.1)
        end_ns = time.time_ns()
    assert set(threading.enumerate()) <= set(before)  # those of earlier tests may have ended meanwhile
    assert 0 < load.calls_at(end_ns) - load.calls_at(start_ns) <= 1 + (end_ns - start_ns) / 2e6  # a call sleeps 2 ms


def test_a_call_as_long_as_a_window_counts_for_the_part_that_was_done() -> None:
    class Slow(Sleeper):
        ended = 0

        def submit(self, units: int) -> Callable[[], None]:
            time.sleep(0.2 * units)
            return lambda: self.end(units)

        def end(self, units: int) -> None:
            self.ended += units

    slow = Slow()
    with Load(slow, 2e8) as load:
        time.sleep(0.5)
        now_ns, ended = time.time_ns(), slow.ended
        calls = load.calls_at(now_ns)
    assert ended < calls < ended + 2  # the one under way is waited for, and what was done of it counts


def test_without_a_card_calls_run_in_a_loop() -> None:
    runner, why = make_runner([Add(torch.zeros(2))], 1e6, on_card=False, why_no_graph="its size")
    assert (runner.how, why) == (How.CPU, "")


def test_kernels_are_read_from_a_graphs_text() -> None:
    text = r"""
    "graph_1_node_0"[label="0\n_ZN2at6native18elementwise_kernelILi128EEvv\<\<\<196,128,0\>\>\>"];
    "graph_1_node_1"[label="{KERNEL\n| {ID | 1 | sm90_xmma_gemm_bf16\<\<\<132,384,0\>\>\>}"];
    "graph_1_node_2"[label="MEMSET"];
    "graph_1_node_3"[label="sm90_xmma_gemm_bf16\<\<\<132,384,0\>\>\>"];
    """
    assert kernel_names(text) == ("_ZN2at6native18elementwise_kernelILi128EEvv", "sm90_xmma_gemm_bf16")


def test_an_errors_first_line_is_told() -> None:
    assert first_line(RuntimeError("\n  out of memory\nmore")) == "out of memory"
    assert first_line(ValueError()) == "ValueError"
