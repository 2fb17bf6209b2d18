"""Read the current state of a GPU: memory, power, temperature, utilization and energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.cards.card import Card
from gpuledger.cards.opening import find_cards


@dataclass(frozen=True)
class Gauge:
    """One sample of a GPU. Values that it does not report are None. ``energy_j`` counts from the first sample."""

    name: str
    used_bytes: int | None
    total_bytes: int | None
    power_w: float | None
    temperature_c: int | None
    busy_frac: float | None
    energy_j: float | None
    process_bytes: int | None


class Gauges:
    """Reads every GPU. ``pid`` is the process with its own memory line.

    Source: the GPUs' drivers; of NVML power is the mean of the last second, and the energy counter ticks every 100 ms.
    """

    def __init__(self, cards: Sequence[Card], pid: int | None = None) -> None:
        self._pid = pid
        self._cards = cards
        self._started_mj = [card.read_energy_mj() for card in self._cards]

    def read(self) -> tuple[Gauge, ...]:
        """Return one reading of each GPU."""
        return tuple(self._read(card, start) for card, start in zip(self._cards, self._started_mj, strict=True))

    def _read(self, card: Card, started_mj: int | None) -> Gauge:
        memory, found, now_mj = card.read_memory(), card.read_sensors(), card.read_energy_mj()
        processes = (card.read_processes() or ()) if self._pid else ()
        return Gauge(
            name=card.name,
            used_bytes=None if memory is None else memory.used_bytes,
            total_bytes=None if memory is None else memory.total_bytes,
            power_w=found.power_average_w,
            temperature_c=found.temperature_c,
            busy_frac=found.utilization_frac,
            energy_j=None if now_mj is None or started_mj is None else (now_mj - started_mj) / 1000,
            process_bytes=next((held_bytes for pid, held_bytes in processes if pid == self._pid), None),
        )


def open_gauges(pid: int | None = None) -> Gauges | None:
    """Return the GPUs' gauges; None where there is no driver or no GPU."""
    cards = find_cards()
    return Gauges(cards, pid) if cards else None
