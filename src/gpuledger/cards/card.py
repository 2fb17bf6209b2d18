"""The :class:`Card` protocol for one GPU of any vendor, its readings, and a base class without any readings.

A value that the GPU or its driver does not provide is None, never 0, and :meth:`Card.why_missing` says why.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol

from gpuledger.cards.tick_phase import TickPhase
from gpuledger.model.energy_window import NVML_COUNTER, EnergyCounter

Processes = list[tuple[int, int | None]]
"""``(pid, bytes)`` of every process on a GPU; bytes are None if the driver does not report them."""


class CardQuantity(StrEnum):
    """A quantity that can be read from a GPU."""

    MEMORY = "memory"
    PROCESSES = "processes"
    POWER = "power"
    INSTANT_POWER = "instant power"
    ENERGY = "energy"
    UTILIZATION = "utilization"
    CLOCK = "clock"
    TEMPERATURE = "temperature"
    THROTTLE_REASONS = "throttle reasons"
    THROTTLED_TIME = "throttled time"
    POWER_LIMIT = "power limit"


class MemoryReading(NamedTuple):
    """One reading of memory. ``used_bytes`` excludes ``driver_bytes``, which is None if the driver does not report it.

    A tuple and not a dataclass, which takes twice as long to create: thousands are created per second.
    """

    used_bytes: int
    driver_bytes: int | None
    total_bytes: int


class SensorReading(NamedTuple):
    """The slower sensors: power in W, fraction of time busy, clocks in MHz, temperature in °C, and throttle reasons.

    ``power_average_w`` is the mean over the vendor's longest interval, ``power_instant_w`` over its shortest.
    """

    power_average_w: float | None = None
    power_instant_w: float | None = None
    utilization_frac: float | None = None
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttle: int | None = None


class Card(Protocol):
    """One GPU. Use an object in one thread only, and open the GPUs again for another thread."""

    index: int
    """Index on this machine. :func:`gpuledger.cards.opening.open_cards` counts over all vendors."""
    name: str
    uuid: str
    """In the form of :func:`torch_uuid`, so that it can be compared with torch's."""
    driver_version: str
    ticks: TickPhase
    """When the energy counter is updated, as far as known."""

    def read_memory(self) -> MemoryReading | None:
        """Return the GPU's bytes."""

    def read_sensors(self) -> SensorReading:
        """Return the values of the slower sensors."""

    def read_processes(self) -> Processes | None:
        """Return ``(pid, bytes)`` of every process on the GPU."""

    def read_energy_mj(self) -> int | None:
        """Return the energy counter in mJ. Its zero point depends on the driver."""

    def read_throttled_ns(self) -> int | None:
        """Return for how long the power limit has lowered the clock so far, in ns."""

    def read_power_limit_w(self) -> float | None:
        """Return the GPU's power limit in W."""

    def is_lost(self) -> bool:
        """Return whether the GPU no longer answers: it fell off the bus, or was reset."""

    def why_missing(self, quantity: CardQuantity) -> str | None:
        """Return why the last reading of a quantity was None; None if it was never read or had a value."""


class BareCard:
    """A GPU without any readings. To support a vendor, derive from it and override the readings that exist.

    Args:
        index: Index among the vendor's GPUs.
        name: Model name.
        uuid: As in :class:`Card`.
        driver_version: The driver's version.
        counter: How its energy counter is updated, if it has one.
        reason: Why every reading that is not overridden is None.
    """

    def __init__(
        self,
        index: int,
        name: str,
        uuid: str,
        *,
        driver_version: str = "",
        counter: EnergyCounter = NVML_COUNTER,
        reason: str = "not reported by this GPU's driver",
    ) -> None:
        self.index = index
        self.name = name
        self.uuid = uuid
        self.driver_version = driver_version
        self.ticks = TickPhase(counter)
        self.reasons: dict[CardQuantity, str] = {}
        """Why a reading was None, if not for the general reason."""
        self._reason = reason

    def read_memory(self) -> MemoryReading | None:
        """Return None."""
        return None

    def read_sensors(self) -> SensorReading:
        """Return a reading without values."""
        return SensorReading()

    def read_processes(self) -> Processes | None:
        """Return None."""
        return None

    def read_energy_mj(self) -> int | None:
        """Return None."""
        return None

    def read_throttled_ns(self) -> int | None:
        """Return None."""
        return None

    def read_power_limit_w(self) -> float | None:
        """Return None."""
        return None

    def is_lost(self) -> bool:
        """Return False."""
        return False

    def why_missing(self, quantity: CardQuantity) -> str | None:
        """Return the reason for this quantity, or else the general one."""
        return self.reasons.get(quantity, self._reason)


def torch_uuid(uuid: object) -> str:
    """Return a GPU's UUID from ``torch.cuda.get_device_properties(…).uuid``; "" if torch does not report it."""
    return "" if uuid is None else f"GPU-{uuid}"
