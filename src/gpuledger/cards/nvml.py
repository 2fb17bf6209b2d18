"""GPUs read with NVML. The only module that uses NVML's Python binding."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from gpuledger.cards.card import CardQuantity, MemoryReading, Processes, SensorReading
from gpuledger.cards.tick_phase import TickPhase
from gpuledger.cards.vendor import LibraryMissingError
from gpuledger.errors import NoDeviceError
from gpuledger.model.energy_window import NVML_COUNTER

_POWER_AVERAGE, _POWER_INSTANT = 185, 186
"""NVML field ids: mean power of the last second, and mean power of 25 ms of every 100 ms."""

_POWER_CAP = 0
"""NVML performance policy that counts the ns for which the power limit lowered the clock."""

_MEMORY_WORDS = ctypes.c_ulonglong * 5
"""NVML's memory info, version 2, as plain integers: version, total, reserved, free, used.

Reading the fields of the binding's own structure takes longer than the driver's answer.
"""


class NvmlCard:
    """The sensors of one GPU, each read separately.

    Args:
        binding: NVML's binding, initialized.
        index: The GPU's NVML index.
        driver_version: The driver's version.
    """

    def __init__(self, binding: Any, index: int, driver_version: str = "") -> None:
        self._nvml = binding
        self._reasons: dict[CardQuantity, str] = {}
        self.index = index
        self.driver_version = driver_version
        self._handle = binding.nvmlDeviceGetHandleByIndex(index)
        self.name = _text(self._ask(None, binding.nvmlDeviceGetName)) or "unknown GPU"
        self.uuid = _text(self._ask(None, binding.nvmlDeviceGetUUID))
        self.ticks = TickPhase(NVML_COUNTER)
        self._memory_call = _bound_memory_call(binding)
        self._memory = _MEMORY_WORDS(getattr(binding, "nvmlMemory_v2", 0))
        self._memory_place = ctypes.byref(self._memory)

    def read_memory(self) -> MemoryReading | None:
        """Return the GPU's memory in bytes. An old driver does not report its own reserved bytes.

        Source: NVML memory info, 4 to 8 µs.
        """
        nvml = self._nvml
        if self._memory_call is not None and self._memory_call(self._handle, self._memory_place) == 0:
            _, total_bytes, driver_bytes, _, used_bytes = self._memory
            return MemoryReading(used_bytes, driver_bytes, total_bytes)
        memory = self._ask(None, lambda card: nvml.nvmlDeviceGetMemoryInfo(card, version=nvml.nvmlMemory_v2))
        if memory is not None:
            return MemoryReading(memory.used, memory.reserved, memory.total)
        memory = self._ask(CardQuantity.MEMORY, nvml.nvmlDeviceGetMemoryInfo)
        return None if memory is None else MemoryReading(memory.used, None, memory.total)

    def read_sensors(self) -> SensorReading:
        """Return the values of the slower sensors."""
        nvml = self._nvml
        busy = self._ask(CardQuantity.UTILIZATION, nvml.nvmlDeviceGetUtilizationRates)
        average_w, instant_w = self._powers_w()
        if average_w is None:
            plain_mw = self._ask(CardQuantity.POWER, nvml.nvmlDeviceGetPowerUsage)
            average_w = None if plain_mw is None else plain_mw / 1e3
        return SensorReading(
            power_average_w=average_w,
            power_instant_w=instant_w,
            utilization_frac=None if busy is None else busy.gpu / 100,
            sm_clock_mhz=self._ask(
                CardQuantity.CLOCK, lambda card: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)
            ),
            temperature_c=self._ask(
                CardQuantity.TEMPERATURE, lambda card: nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU)
            ),
            throttle=self._ask(CardQuantity.THROTTLE_REASONS, nvml.nvmlDeviceGetCurrentClocksThrottleReasons),
        )

    def read_energy_mj(self) -> int | None:
        """Return the energy counter in mJ since the driver was loaded.

        A read takes 3 to 4 ms; updates come every 100 ms.
        """
        energy_mj = self._ask(CardQuantity.ENERGY, self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if energy_mj is None else int(energy_mj)

    def read_throttled_ns(self) -> int | None:
        """Return for how long the power limit has lowered the clock since the driver was loaded, in ns."""
        status = self._ask(
            CardQuantity.THROTTLED_TIME, lambda card: self._nvml.nvmlDeviceGetViolationStatus(card, _POWER_CAP)
        )
        return None if status is None else int(status.violationTime)

    def read_power_limit_w(self) -> float | None:
        """Return the GPU's power limit in W."""
        limit_mw = self._ask(CardQuantity.POWER_LIMIT, self._nvml.nvmlDeviceGetEnforcedPowerLimit)
        return None if limit_mw is None else limit_mw / 1e3

    def read_processes(self) -> Processes | None:
        """Return ``(pid, bytes)`` of every process on the GPU; None where the driver does not list them."""
        found = self._ask(CardQuantity.PROCESSES, self._nvml.nvmlDeviceGetComputeRunningProcesses)
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

    def why_missing(self, quantity: CardQuantity) -> str | None:
        """Return NVML's error for the last reading of a quantity that was None."""
        return self._reasons.get(quantity)

    def _powers_w(self) -> tuple[float | None, float | None]:
        """Return average and instant power."""
        fields = {_POWER_AVERAGE: CardQuantity.POWER, _POWER_INSTANT: CardQuantity.INSTANT_POWER}
        values = self._ask(
            CardQuantity.INSTANT_POWER, lambda card: self._nvml.nvmlDeviceGetFieldValues(card, list(fields))
        )
        watts: list[float | None] = []
        for quantity, value in zip(fields.values(), values or (), strict=bool(values)):
            if value.nvmlReturn:
                self._reasons[quantity] = str(self._nvml.NVMLError(value.nvmlReturn))
            watts.append(None if value.nvmlReturn else float(value.value.uiVal) / 1e3)
        return (watts[0], watts[1]) if watts else (None, None)

    def _ask(self, quantity: CardQuantity | None, question: Callable[[Any], Any]) -> Any:
        """Return the value; None if GPU, driver or permissions do not provide it. The error is stored."""
        try:
            return question(self._handle)
        except self._nvml.NVMLError as error:
            if quantity is not None:
                self._reasons[quantity] = str(error)
            return None


def _bound_memory_call(binding: Any) -> Any:
    """Return the driver's own function, which is called for every sample; None if the binding does not expose it.

    The binding's wrapper looks the function up and creates a structure at each call, which is most of the cost.
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
    """The GPUs of an initialized NVML."""

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
        """Do nothing: other code in this process may use NVML."""


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
