"""What a card shows at one moment: bytes, watts, degrees, how busy it is, and the joules so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuledger.collect.nvml import open_nvml


@dataclass(frozen=True)
class Gauge:
    """One card at one moment; None where it does not tell. ``energy_j`` counts from the first reading."""

    name: str
    used_bytes: int | None
    total_bytes: int | None
    power_w: float | None
    temperature_c: int | None
    busy_frac: float | None
    energy_j: float | None
    process_bytes: int | None


class Gauges:
    """Reads every card. ``pid`` is the process whose bytes are told apart.

    Source: NVML; power is the mean of the last second, the energy counter ticks every 100 ms.
    """

    def __init__(self, binding: Any, pid: int | None = None) -> None:
        self._nvml = binding
        self._pid = pid
        self._handles = [binding.nvmlDeviceGetHandleByIndex(number) for number in range(binding.nvmlDeviceGetCount())]
        self._started_mj = [self._ask(binding.nvmlDeviceGetTotalEnergyConsumption, handle) for handle in self._handles]

    def read(self) -> tuple[Gauge, ...]:
        """Return one reading of each card."""
        return tuple(self._read(handle, start) for handle, start in zip(self._handles, self._started_mj, strict=True))

    def _read(self, handle: Any, started_mj: float | None) -> Gauge:
        nvml = self._nvml
        name = self._ask(nvml.nvmlDeviceGetName, handle)
        memory = self._ask(lambda one: nvml.nvmlDeviceGetMemoryInfo(one, version=nvml.nvmlMemory_v2), handle)
        power_mw = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        busy = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        now_mj = self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        return Gauge(
            name=name.decode() if isinstance(name, bytes) else str(name or "unknown card"),
            used_bytes=None if memory is None else int(memory.used),
            total_bytes=None if memory is None else int(memory.total),
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=self._ask(lambda one: nvml.nvmlDeviceGetTemperature(one, nvml.NVML_TEMPERATURE_GPU), handle),
            busy_frac=None if busy is None else busy.gpu / 100,
            energy_j=None if now_mj is None or started_mj is None else (now_mj - started_mj) / 1000,
            process_bytes=self._process_bytes(handle),
        )

    def _process_bytes(self, handle: Any) -> int | None:
        processes = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle) if self._pid else None
        return next((one.usedGpuMemory for one in processes or () if one.pid == self._pid), None)

    def _ask(self, question: Callable[[Any], Any], handle: Any) -> Any:
        """Return the answer; None where the card does not give one."""
        try:
            return question(handle)
        except self._nvml.NVMLError:
            return None


def open_gauges(pid: int | None = None) -> Gauges | None:
    """Return the cards' gauges; None where there is no driver or no card."""
    if open_nvml() is None:
        return None
    import pynvml

    gauges = Gauges(pynvml, pid)
    return gauges if gauges.read() else None
