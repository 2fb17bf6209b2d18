"""A card and a sampler's world on a simulated clock: reading takes time, and waiting takes none of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuledger.cards.nvml import MemoryReading
from gpuledger.cards.sensors import SensorReading
from gpuledger.cards.tick_phase import TickPhase
from gpuledger.collect.sampling.watch_process import Order, Sampler, World
from gpuledger.model.energy_window import TICK_NS
from gpuledger.model.journal.journal import Journal, JournalWriter, read_journal, write_compressed

US, MS, S = 1_000, 1_000_000, 1_000_000_000
START_NS = 1_700_000_000 * S


class Clock:
    """Time that passes only where somebody says so."""

    def __init__(self) -> None:
        self.now_ns = START_NS
        self.orders: list[tuple[int, Order]] = []

    def time_ns(self) -> int:
        return self.now_ns

    def wait_ns(self, patience_ns: int) -> Order | None:
        """Pass the time until the next order, at most so long; waking up takes 50 µs more."""
        until_ns = self.now_ns + patience_ns
        if self.orders and self.orders[0][0] <= until_ns:
            at_ns, order = self.orders.pop(0)
            self.now_ns = max(self.now_ns, at_ns)
            return order
        self.now_ns = until_ns + (50 * US if patience_ns else 0)
        return None

    def world(self) -> World:
        return World(self.time_ns, self.time_ns, self.wait_ns, parent=lambda: 1)


class SimulatedCard:
    """A counter that ticks every 100.1 ms; each read of it takes ``read_ns``, as on an H200."""

    def __init__(
        self, clock: Clock, index: int = 0, read_ns: int = 3_500 * US, watts: Callable[[float], float] = lambda _: 300.0
    ) -> None:
        self.index = index
        self.counter_reads = 0
        self.used_bytes: Callable[[int], int | None] = lambda _: 1 << 30
        self.processes: list[tuple[int, int | None]] = []
        self.is_there = True
        self.ticks = TickPhase()
        self._clock = clock
        self._read_ns = read_ns
        self._watts = watts
        self._counted = [(START_NS // TICK_NS, 10**12)]

    def read_memory(self) -> MemoryReading | None:
        self._clock.now_ns += 8 * US
        used = self.used_bytes(self._clock.now_ns) if self.is_there else None
        return None if used is None else MemoryReading(used, 600 << 20, 140 << 30)

    def read_sensors(self) -> SensorReading:
        self._clock.now_ns += 30 * US
        watts = self._watts(self._clock.now_ns / 1e9)
        return SensorReading(watts, watts, 1.0, 1980, 55, 0)

    def read_processes(self) -> list[tuple[int, int | None]]:
        self._clock.now_ns += 15 * US
        return self.processes

    def read_energy_mj(self) -> int | None:
        if not self.is_there:
            return None
        self.counter_reads += 1
        self._clock.now_ns += self._read_ns
        ticks, energy_mj = self._counted[-1]
        while ticks < self._clock.now_ns // TICK_NS:
            ticks += 1
            energy_mj += round(self._watts(ticks * TICK_NS / 1e9) * TICK_NS / 1e6)
        self._counted = [(ticks, energy_mj)]
        return energy_mj

    def read_throttled_ns(self) -> int | None:
        self._clock.now_ns += 620 * US
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
