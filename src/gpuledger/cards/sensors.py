"""One card's sensors, each asked by itself: what a card or a driver does not offer is None, never 0."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpuledger.cards.tick_phase import TickPhase

_POWER_AVERAGE, _POWER_INSTANT = 185, 186
"""NVML's fields: power of the last second, and power of 25 ms of every 100 ms."""

_POWER_CAP = 0
"""NVML's performance policy that counts the nanoseconds below the asked clock by the power cap."""


_MEMORY_WORDS = ctypes.c_ulonglong * 5
"""NVML's memory info, version 2, as plain words: version, total, reserved, free, used. The binding's own structure
takes longer to look into than the driver takes to answer."""


Processes = list[tuple[int, int | None]]
"""``(pid, bytes)`` of every process on a card; None where the driver does not tell the bytes."""


class MemoryReading(NamedTuple):
    """One reading. ``used_bytes`` excludes ``driver_bytes``, which is None where the driver does not tell.

    A tuple: thousands are made a second, and a dataclass takes twice as long.
    """

    used_bytes: int
    driver_bytes: int | None
    total_bytes: int


class SensorReading(NamedTuple):
    """What moves every 100 ms: watts, share of time busy, MHz, °C, and NVML's mask of reasons for a lower clock."""

    power_average_w: float | None
    power_instant_w: float | None
    utilization_frac: float | None
    sm_clock_mhz: int | None
    temperature_c: int | None
    throttle: int | None


class CardSensors:
    """The sensors of one card: the one place where a card is read.

    Args:
        binding: NVML, open.
        index: The card's number there.
        handle: NVML's own handle of it, where it was not found by its number.
    """

    def __init__(self, binding: Any, index: int, handle: Any = None) -> None:
        self._nvml = binding
        self.index = index
        self._handle = binding.nvmlDeviceGetHandleByIndex(index) if handle is None else handle
        self.name = _text(self._ask(binding.nvmlDeviceGetName)) or "unknown card"
        self.uuid = _text(self._ask(binding.nvmlDeviceGetUUID))
        self.ticks = TickPhase()
        self._memory_call = _bound_memory_call(binding)
        self._memory = _MEMORY_WORDS(getattr(binding, "nvmlMemory_v2", 0))
        self._memory_place = ctypes.byref(self._memory)

    def read_memory(self) -> MemoryReading | None:
        """Return the card's bytes; from an old driver without those it keeps for itself.

        Source: NVML memory info, 4 to 8 µs.
        """
        nvml = self._nvml
        if self._memory_call is not None and self._memory_call(self._handle, self._memory_place) == 0:
            _, total_bytes, driver_bytes, _, used_bytes = self._memory
            return MemoryReading(used_bytes, driver_bytes, total_bytes)
        memory = self._ask(lambda card: nvml.nvmlDeviceGetMemoryInfo(card, version=nvml.nvmlMemory_v2))
        if memory is not None:
            return MemoryReading(memory.used, memory.reserved, memory.total)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo)
        return None if memory is None else MemoryReading(memory.used, None, memory.total)

    def read_sensors(self) -> SensorReading:
        """Return what the slower sensors show."""
        nvml = self._nvml
        busy = self._ask(nvml.nvmlDeviceGetUtilizationRates)
        average_w, instant_w = self._powers_w()
        if average_w is None:
            plain_mw = self._ask(nvml.nvmlDeviceGetPowerUsage)
            average_w = None if plain_mw is None else plain_mw / 1e3
        return SensorReading(
            power_average_w=average_w,
            power_instant_w=instant_w,
            utilization_frac=None if busy is None else busy.gpu / 100,
            sm_clock_mhz=self._ask(lambda card: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)),
            temperature_c=self._ask(lambda card: nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU)),
            throttle=self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons),
        )

    def read_energy_mj(self) -> int | None:
        """Return the energy counter in mJ since the driver was loaded; it takes 3 to 4 ms and ticks every 100 ms."""
        energy_mj = self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if energy_mj is None else int(energy_mj)

    def read_throttled_ns(self) -> int | None:
        """Return how long the power cap has held the clock down since the driver was loaded, in ns."""
        status = self._ask(lambda card: self._nvml.nvmlDeviceGetViolationStatus(card, _POWER_CAP))
        return None if status is None else int(status.violationTime)

    def read_power_limit_w(self) -> float | None:
        """Return the power that the card is held below, in W."""
        limit_mw = self._ask(self._nvml.nvmlDeviceGetEnforcedPowerLimit)
        return None if limit_mw is None else limit_mw / 1e3

    def read_processes(self) -> Processes:
        """Return ``(pid, bytes)`` of every process on the card; none where the driver does not list them."""
        return self.list_processes() or []

    def list_processes(self) -> Processes | None:
        """Return ``(pid, bytes)`` of every process on the card; None where the driver does not list them."""
        found = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses)
        return None if found is None else [(process.pid, process.usedGpuMemory) for process in found]

    def is_lost(self) -> bool:
        """Return whether the card no longer answers: it fell off the bus, or was reset."""
        try:
            self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        except (self._nvml.NVMLError_GpuIsLost, self._nvml.NVMLError_Uninitialized):
            return True
        except self._nvml.NVMLError:
            return False
        return False

    def _powers_w(self) -> tuple[float | None, float | None]:
        """Return average and instant power."""
        values = (
            self._ask(lambda card: self._nvml.nvmlDeviceGetFieldValues(card, [_POWER_AVERAGE, _POWER_INSTANT])) or ()
        )
        watts = [None if value.nvmlReturn else float(value.value.uiVal) / 1e3 for value in values]
        return (watts[0], watts[1]) if watts else (None, None)

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """Return the answer; None where card, driver or permission give none."""
        try:
            return question(self._handle)
        except self._nvml.NVMLError:
            return None


def _bound_memory_call(binding: Any) -> Any:
    """Return the driver's function itself, asked at every tick; None where this binding does not show it.

    The binding's own looks the function up and makes a structure each time, which is most of a reading's cost.
    """
    find = getattr(binding, "_nvmlGetFunctionPointer", None)
    if find is None or not hasattr(binding, "c_nvmlMemory_v2_t"):
        return None
    try:
        return find("nvmlDeviceGetMemoryInfo_v2")
    except binding.NVMLError:
        return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def choose_numbers(wanted: list[int] | None, there: Sequence[int]) -> list[int]:
    """Return the numbers of the cards to read: all, or those wanted.

    Raises:
        NoDeviceError: there is none, or not such a one.
    """
    from gpuledger.errors import NoDeviceError

    if not there:
        raise NoDeviceError("watch: this machine has no GPU", hint="gpuledger doctor says what is missing")
    missing = [number for number in wanted or () if number not in there]
    if missing:
        have = str(there[0]) if len(there) == 1 else f"{there[0]} to {there[-1]}"
        raise NoDeviceError(f"watch: no GPU {missing[0]}", hint=f"this machine has {have}")
    return list(wanted or there)


def open_cards(wanted: list[int] | None = None) -> tuple[list[CardSensors], str]:
    """Return the cards, or those ``wanted`` by number, and the driver's version.

    Raises:
        NoDeviceError: no driver, no card, no permission, or no such card.
    """
    import pynvml

    from gpuledger.errors import NoDeviceError

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        raise NoDeviceError(
            f"watch: no GPU can be read: {error}", hint="gpuledger doctor says what is missing"
        ) from error
    numbers = choose_numbers(wanted, range(count))
    try:
        cards = [CardSensors(pynvml, number) for number in numbers]
    except pynvml.NVMLError as error:
        raise NoDeviceError(f"watch: a GPU cannot be opened: {error}", hint="gpuledger doctor") from error
    version = _text(pynvml.nvmlSystemGetDriverVersion())
    return cards, version


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def children_of(pid: int) -> set[int]:
    """Return a process and all below it that live."""
    import psutil

    try:
        process = psutil.Process(pid)
        return {pid, *(child.pid for child in process.children(recursive=True))}
    except psutil.Error:
        return {pid} if os.path.exists(f"/proc/{pid}") else set()
