"""The simulated GPU, and a sampler on a simulated clock: a reading takes time, and waiting takes none of ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuledger.cards.card import BareCard, MemoryReading, Processes, SensorReading
from gpuledger.collect.sampling.watch_process import Order, Sampler, Surroundings
from gpuledger.model.energy_window import NVML_COUNTER, EnergyCounter
from gpuledger.model.journal.journal import JournalWriter, write_compressed
from gpuledger.model.journal.reading import Journal, read_journal

US, MS, S = 1_000, 1_000_000, 1_000_000_000
START_NS = 1_700_000_000 * S
TICK_NS = 100_100_000
"""As an H200 ticks (bench/energy/nvml_calls.py), whatever the code takes it for."""


class Clock:
    """Time that passes only where somebody says so."""

    def __init__(self) -> None:
        self.now_ns = START_NS
        self.orders: list[tuple[int, Order]] = []

    def time_ns(self) -> int:
        return self.now_ns

    def spend_ns(self, length_ns: int) -> None:
        """Let a reading take its time."""
        self.now_ns += length_ns

    def wait_ns(self, patience_ns: int) -> Order | None:
        """Pass the time until the next order, at most so long; waking up takes 50 µs more."""
        until_ns = self.now_ns + patience_ns
        if self.orders and self.orders[0][0] <= until_ns:
            at_ns, order = self.orders.pop(0)
            self.now_ns = max(self.now_ns, at_ns)
            return order
        self.now_ns = until_ns + (50 * US if patience_ns else 0)
        return None

    def world(self) -> Surroundings:
        return Surroundings(self.time_ns, self.time_ns, self.wait_ns, parent=lambda: 1)


class RealClock:
    """The time that passes anyway."""

    def time_ns(self) -> int:
        return time.time_ns()

    def spend_ns(self, length_ns: int) -> None:
        """Take no longer than it takes."""


class SimulatedCard(BareCard):
    """A GPU with a counter that ticks as ``counter`` says; each read of it takes ``read_ns``.

    Args:
        clock: Simulated or real.
        index: Its number.
        read_ns: As on an H200.
        watts: Its power at a Unix time in seconds.
        counter: NVML's as on an H200, or another vendor's.
        name: Its model.
    """

    def __init__(
        self,
        clock: Clock | RealClock,
        index: int = 0,
        read_ns: int = 3_500 * US,
        watts: Callable[[float], float] = lambda _: 300.0,
        *,
        counter: EnergyCounter = NVML_COUNTER,
        name: str = "Simulated",
    ) -> None:
        super().__init__(index, name, f"GPU-{name.lower()}-{index}", driver_version="1.0", counter=counter)
        self.counter_reads = 0
        self.used_bytes: Callable[[int], int | None] = lambda _: 1 << 30
        self.processes: Processes | None = []
        self.is_there = True
        self._clock = clock
        self._read_ns = read_ns
        self._watts = watts
        self._period_ns = counter.period_ns
        self._counted = [(clock.time_ns() // self._period_ns, 10**12)]

    def read_memory(self) -> MemoryReading | None:
        self._clock.spend_ns(8 * US)
        used = self.used_bytes(self._clock.time_ns()) if self.is_there else None
        return None if used is None else MemoryReading(used, 600 << 20, 140 << 30)

    def read_sensors(self) -> SensorReading:
        self._clock.spend_ns(30 * US)
        watts = self._watts(self._clock.time_ns() / 1e9)
        return SensorReading(watts, watts, 1.0, 1980, 55, 0)

    def read_processes(self) -> Processes | None:
        self._clock.spend_ns(15 * US)
        return self.processes

    def read_energy_mj(self) -> int | None:
        if not self.is_there:
            return None
        self.counter_reads += 1
        self._clock.spend_ns(self._read_ns)
        ticks, energy_mj = self._counted[-1]
        while ticks < self._clock.time_ns() // self._period_ns:
            ticks += 1
            energy_mj += round(self._watts(ticks * self._period_ns / 1e9) * self._period_ns / 1e6)
        self._counted = [(ticks, energy_mj)]
        return energy_mj

    def read_throttled_ns(self) -> int | None:
        self._clock.spend_ns(620 * US)
        return 0

    def is_lost(self) -> bool:
        return not self.is_there


def order(at_s: float, **words: Any) -> tuple[int, Order]:
    """Return what the parent says so many seconds after the start."""
    at_ns = START_NS + round(at_s * 1e9)
    return at_ns, {**words, "at_ns": at_ns}


def sampled(
    directory: Path, clock: Clock, cards: list[SimulatedCard], interval_ns: int, orders: list[tuple[int, Order]]
) -> tuple[Sampler, Journal]:
    """Return the sampler after it has followed the orders, and what it wrote."""
    clock.orders = sorted(orders, key=lambda one: one[0])
    sampler = Sampler(cards, JournalWriter(directory, write_compressed), interval_ns, clock.world())
    sampler.prepare()
    sampler.run()
    return sampler, read_journal(directory)
