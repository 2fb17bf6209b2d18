"""Where readings of cards come from: NVML, or the tool nvidia-smi where its library is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpuledger.cards import smi
from gpuledger.cards.edges import Counted
from gpuledger.cards.nvml import MemoryReading
from gpuledger.cards.sensors import SensorReading, open_cards
from gpuledger.errors import NoDeviceError


class WatchedCard(Counted, Protocol):
    """What is asked of one card: NVML's :class:`gpuledger.cards.sensors.CardSensors`, or one of nvidia-smi's."""

    name: str
    uuid: str

    def read_memory(self) -> MemoryReading | None:
        """Return the card's bytes; None where they cannot be read."""

    def read_sensors(self) -> SensorReading:
        """Return what the slower sensors show."""

    def read_processes(self) -> list[tuple[int, int | None]]:
        """Return ``(pid, bytes)`` of every process on the card."""

    def is_lost(self) -> bool:
        """Return whether the card no longer answers."""


@dataclass(frozen=True)
class Source:
    """Cards that can be read, how often, and what is to be said of that."""

    cards: Sequence[WatchedCard]
    driver_version: str
    interval_ns: int
    notes: tuple[str, ...] = ()
    knows_processes: bool = True
    close: Callable[[], None] = lambda: None

    def devices(self) -> list[dict[str, Any]]:
        """Return what a run's manifest says of the cards."""
        return [_facts_of(card, self.driver_version) for card in self.cards]


def open_source(wanted: list[int] | None, interval_ns: int) -> Source:
    """Return the cards, or those ``wanted`` by number: NVML's, or nvidia-smi's where its library is missing.

    Raises:
        NoDeviceError: no driver, no card, no permission, or no such card.
    """
    try:
        cards, driver_version = open_cards(wanted)
    except NoDeviceError as error:
        if type(error.__cause__).__name__ != "NVMLError_LibraryNotFound":
            raise
        found = smi.open_smi(wanted, interval_ns)
        if found is None:
            raise
        stream, driver_version = found
        slower_ns = max(interval_ns, smi.SHORTEST_NS)
        return Source(stream.cards, driver_version, slower_ns, (smi.NOTE,), False, stream.stop)
    return Source(cards, driver_version, interval_ns)


def _facts_of(card: WatchedCard, driver_version: str) -> dict[str, Any]:
    memory = card.read_memory()
    return {
        "device_idx": card.index,
        "name": card.name,
        "uuid": card.uuid,
        "total_bytes": None if memory is None else memory.total_bytes,
        "driver_version": driver_version,
        "energy_counter": card.read_energy_mj() is not None,
    }
