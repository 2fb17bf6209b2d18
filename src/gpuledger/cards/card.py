"""What one GPU can be asked, whoever made it: the :class:`Card` protocol, its readings, and a GPU that tells nothing.

What a GPU or its driver does not tell is None, never 0, and :meth:`Card.why_missing` says why.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol

from gpuledger.cards.tick_phase import TickPhase
from gpuledger.model.energy_window import NVML_COUNTER, EnergyCounter

Processes = list[tuple[int, int | None]]
"""``(pid, bytes)`` of every process on a GPU; None where the driver does not tell the bytes."""


class Quantity(StrEnum):
    """What a GPU can be asked for."""

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
    """One reading. ``used_bytes`` excludes ``driver_bytes``, which is None where the driver does not tell.

    A tuple: thousands are made a second, and a dataclass takes twice as long.
    """

    used_bytes: int
    driver_bytes: int | None
    total_bytes: int


class SensorReading(NamedTuple):
    """The slower sensors: watts, share of time busy, MHz, °C, and the mask of reasons for a lower clock.

    ``power_average_w`` is the mean of the vendor's longest interval, ``power_instant_w`` that of its shortest.
    """

    power_average_w: float | None = None
    power_instant_w: float | None = None
    utilization_frac: float | None = None
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttle: int | None = None


class Card(Protocol):
    """One GPU. An object belongs to one thread: open the GPUs once more for another."""

    index: int
    """Its number on this machine; :func:`gpuledger.cards.opening.open_cards` counts over all vendors."""
    name: str
    uuid: str
    """As :func:`torch_uuid` makes it of what torch says, so that the two can be matched."""
    driver_version: str
    ticks: TickPhase
    """How its energy counter moves, and what has been learnt of when."""

    def read_memory(self) -> MemoryReading | None:
        """Return the GPU's bytes."""

    def read_sensors(self) -> SensorReading:
        """Return what the slower sensors show."""

    def read_processes(self) -> Processes | None:
        """Return ``(pid, bytes)`` of every process on the GPU."""

    def read_energy_mj(self) -> int | None:
        """Return the energy counter in mJ; from when it counts is the driver's choice."""

    def read_throttled_ns(self) -> int | None:
        """Return how long the power cap has held the clock down so far, in ns."""

    def read_power_limit_w(self) -> float | None:
        """Return the power that the GPU is held below, in W."""

    def is_lost(self) -> bool:
        """Return whether the GPU no longer answers: it fell off the bus, or was reset."""

    def why_missing(self, quantity: Quantity) -> str | None:
        """Return why a quantity was None when it was read last; None where nobody has read it or it never was."""


class BareCard:
    """A GPU that tells nothing but what it is: derive a vendor's GPU from it and override what it can tell.

    Args:
        index: Its number among the vendor's GPUs.
        name: Its model.
        uuid: As in :class:`Card`.
        driver_version: The driver's version.
        counter: How its energy counter moves, where it has one.
        reason: Why everything that is not overridden is None.
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
        self.reasons: dict[Quantity, str] = {}
        """Why a reading was None, where the general reason is not it."""
        self._reason = reason

    def read_memory(self) -> MemoryReading | None:
        """Return None."""
        return None

    def read_sensors(self) -> SensorReading:
        """Return nothing known."""
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

    def why_missing(self, quantity: Quantity) -> str | None:
        """Return the reason given for this quantity, else the general one."""
        return self.reasons.get(quantity, self._reason)


def torch_uuid(uuid: object) -> str:
    """Return a GPU's UUID from ``torch.cuda.get_device_properties(…).uuid``; "" where torch does not tell it."""
    return "" if uuid is None else f"GPU-{uuid}"
