"""GPUs read by NVML, the one module that knows its Python binding."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from gpuledger.cards.card import MemoryReading, Processes, Quantity, SensorReading
from gpuledger.cards.tick_phase import TickPhase
from gpuledger.cards.vendor import LibraryMissingError
from gpuledger.errors import NoDeviceError
from gpuledger.model.energy_window import NVML_COUNTER

_POWER_AVERAGE, _POWER_INSTANT = 185, 186
"""NVML's fields: power of the last second, and power of 25 ms of every 100 ms."""

_POWER_CAP = 0
"""NVML's performance policy that counts the nanoseconds below the asked clock by the power cap."""

_MEMORY_WORDS = ctypes.c_ulonglong * 5
"""NVML's memory info, version 2, as plain words: version, total, reserved, free, used. The binding's own structure
takes longer to look into than the driver takes to answer."""


class NvmlCard:
    """The sensors of one GPU, each asked by itself.

    Args:
        binding: NVML, open.
        index: The GPU's number there.
        driver_version: The driver's version.
    """

    def __init__(self, binding: Any, index: int, driver_version: str = "") -> None:
        self._nvml = binding
        self._reasons: dict[Quantity, str] = {}
        self.index = index
        self.driver_version = driver_version
        self._handle = binding.nvmlDeviceGetHandleByIndex(index)
        self.name = _text(self._ask(None, binding.nvmlDeviceGetName)) or "unknown card"
        self.uuid = _text(self._ask(None, binding.nvmlDeviceGetUUID))
        self.ticks = TickPhase(NVML_COUNTER)
        self._memory_call = _bound_memory_call(binding)
        self._memory = _MEMORY_WORDS(getattr(binding, "nvmlMemory_v2", 0))
        self._memory_place = ctypes.byref(self._memory)

    def read_memory(self) -> MemoryReading | None:
        """Return the GPU's bytes; from an old driver without those it keeps for itself.

        Source: NVML memory info, 4 to 8 µs.
        """
        nvml = self._nvml
        if self._memory_call is not None and self._memory_call(self._handle, self._memory_place) == 0:
            _, total_bytes, driver_bytes, _, used_bytes = self._memory
            return MemoryReading(used_bytes, driver_bytes, total_bytes)
        memory = self._ask(None, lambda card: nvml.nvmlDeviceGetMemoryInfo(card, version=nvml.nvmlMemory_v2))
        if memory is not None:
            return MemoryReading(memory.used, memory.reserved, memory.total)
        memory = self._ask(Quantity.MEMORY, nvml.nvmlDeviceGetMemoryInfo)
        return None if memory is None else MemoryReading(memory.used, None, memory.total)

    def read_sensors(self) -> SensorReading:
        """Return what the slower sensors show."""
        nvml = self._nvml
        busy = self._ask(Quantity.UTILIZATION, nvml.nvmlDeviceGetUtilizationRates)
        average_w, instant_w = self._powers_w()
        if average_w is None:
            plain_mw = self._ask(Quantity.POWER, nvml.nvmlDeviceGetPowerUsage)
            average_w = None if plain_mw is None else plain_mw / 1e3
        return SensorReading(
            power_average_w=average_w,
            power_instant_w=instant_w,
            utilization_frac=None if busy is None else busy.gpu / 100,
            sm_clock_mhz=self._ask(Quantity.CLOCK, lambda card: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)),
            temperature_c=self._ask(
                Quantity.TEMPERATURE, lambda card: nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU)
            ),
            throttle=self._ask(Quantity.THROTTLE_REASONS, nvml.nvmlDeviceGetCurrentClocksThrottleReasons),
        )

    def read_energy_mj(self) -> int | None:
        """Return the energy counter in mJ since the driver was loaded; it takes 3 to 4 ms and ticks every 100 ms."""
        energy_mj = self._ask(Quantity.ENERGY, self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if energy_mj is None else int(energy_mj)

    def read_throttled_ns(self) -> int | None:
        """Return how long the power cap has held the clock down since the driver was loaded, in ns."""
        status = self._ask(
            Quantity.THROTTLED_TIME, lambda card: self._nvml.nvmlDeviceGetViolationStatus(card, _POWER_CAP)
        )
        return None if status is None else int(status.violationTime)

    def read_power_limit_w(self) -> float | None:
        """Return the power that the GPU is held below, in W."""
        limit_mw = self._ask(Quantity.POWER_LIMIT, self._nvml.nvmlDeviceGetEnforcedPowerLimit)
        return None if limit_mw is None else limit_mw / 1e3

    def read_processes(self) -> Processes | None:
        """Return ``(pid, bytes)`` of every process on the GPU; None where the driver does not list them."""
        found = self._ask(Quantity.PROCESSES, self._nvml.nvmlDeviceGetComputeRunningProcesses)
        return None if found is None else [(process.pid, process.usedGpuMemory) for process in found]

    def is_lost(self) -> bool:
        """Return whether the GPU no longer answers: it fell off the bus, or was reset."""
        try:
            self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        except (self._nvml.NVMLError_GpuIsLost, self._nvml.NVMLError_Uninitialized):
            return True
        except self._nvml.NVMLError:
            return False
        return False

    def why_missing(self, quantity: Quantity) -> str | None:
        """Return NVML's reason of the last time that a quantity was None."""
        return self._reasons.get(quantity)

    def _powers_w(self) -> tuple[float | None, float | None]:
        """Return average and instant power."""
        fields = {_POWER_AVERAGE: Quantity.POWER, _POWER_INSTANT: Quantity.INSTANT_POWER}
        values = self._ask(Quantity.INSTANT_POWER, lambda card: self._nvml.nvmlDeviceGetFieldValues(card, list(fields)))
        watts: list[float | None] = []
        for quantity, value in zip(fields.values(), values or (), strict=bool(values)):
            if value.nvmlReturn:
                self._reasons[quantity] = str(self._nvml.NVMLError(value.nvmlReturn))
            watts.append(None if value.nvmlReturn else float(value.value.uiVal) / 1e3)
        return (watts[0], watts[1]) if watts else (None, None)

    def _ask(self, quantity: Quantity | None, question: Callable[[Any], Any]) -> Any:
        """Return the answer; None where GPU, driver or permission give none, and the reason is kept."""
        try:
            return question(self._handle)
        except self._nvml.NVMLError as error:
            if quantity is not None:
                self._reasons[quantity] = str(error)
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


class NvmlSource:
    """The GPUs that an open NVML knows."""

    notes: tuple[str, ...] = ()
    shortest_interval_ns = 0

    def __init__(self, binding: Any) -> None:
        self._nvml = binding
        self.driver_version = _text(binding.nvmlSystemGetDriverVersion())
        self.numbers: Sequence[int] = range(int(binding.nvmlDeviceGetCount()))

    def card(self, number: int) -> NvmlCard:
        """Return a GPU by its number.

        Raises:
            NoDeviceError: it cannot be opened.
        """
        try:
            return NvmlCard(self._nvml, number, self.driver_version)
        except self._nvml.NVMLError as error:
            raise NoDeviceError(
                f"GPU {number}: cannot be opened: {error}", hint="Run gpuledger doctor to see what is missing"
            ) from error

    def find_number(self, uuid: str) -> int | None:
        """Return the number of the GPU with a UUID."""
        try:
            return int(self._nvml.nvmlDeviceGetIndex(self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode())))
        except self._nvml.NVMLError:
            return None

    def close(self) -> None:
        """Do nothing: other objects of this process may use NVML."""


def open_nvml() -> NvmlSource:
    """Return NVML's GPUs.

    Raises:
        LibraryMissingError: NVML's library, or its Python binding, cannot be loaded.
        NoDeviceError: NVML cannot be used here.
    """
    try:
        import pynvml
    except ImportError as error:
        raise LibraryMissingError(
            f"nvidia-ml-py cannot be imported: {error}", hint="pip install nvidia-ml-py"
        ) from error
    try:
        pynvml.nvmlInit()
        return NvmlSource(pynvml)
    except pynvml.NVMLError as error:
        is_missing = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        raise (LibraryMissingError if is_missing else NoDeviceError)(str(error)) from error
