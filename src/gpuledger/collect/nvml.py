"""NVML: what the card itself says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MemoryReading:
    """One reading. ``used_bytes`` excludes ``driver_bytes``, which is None where the driver does not tell."""

    used_bytes: int
    driver_bytes: int | None
    total_bytes: int


class Nvml:
    """An open NVML."""

    def __init__(self, binding: Any) -> None:
        self._nvml = binding
        self._handles: dict[str, Any] = {}

    def _handle(self, uuid: str) -> Any:
        handle = self._handles.get(uuid)
        if handle is None:
            handle = self._handles[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        return handle

    def driver_version(self) -> str:
        """Return the driver's version."""
        return str(self._nvml.nvmlSystemGetDriverVersion())

    def device_count(self) -> int:
        """Return the number of cards."""
        return int(self._nvml.nvmlDeviceGetCount())

    def read_memory(self, uuid: str) -> MemoryReading | None:
        """Return the card's bytes; None where it cannot be read."""
        try:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle(uuid), version=self._nvml.nvmlMemory_v2)
        except self._nvml.NVMLError:
            return None
        return MemoryReading(memory.used, memory.reserved, memory.total)

    def read_processes(self, uuid: str) -> list[tuple[int, int | None]] | None:
        """Return ``(pid, bytes)`` of every process on the card; None where it cannot be read."""
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle(uuid))
        except self._nvml.NVMLError:
            return None
        return [(process.pid, process.usedGpuMemory) for process in processes]


def open_nvml() -> Nvml | None:
    """Return NVML; None where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return Nvml(pynvml)
