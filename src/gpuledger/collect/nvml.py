"""NVML: what the card itself says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

DRIVER_NODES = ("/dev/nvidiactl", "/dev/dxg")
"""One of these is there where a driver is: of Linux, or of Windows below WSL."""


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

    def card_uuids(self) -> list[str]:
        """Return the UUID of every card that can be asked for it, in NVML's order."""
        uuids = []
        for index in range(self.device_count()):
            try:
                uuids.append(str(self._nvml.nvmlDeviceGetUUID(self._nvml.nvmlDeviceGetHandleByIndex(index))))
            except self._nvml.NVMLError:
                continue
        return uuids

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
    if not any(os.path.exists(node) for node in DRIVER_NODES):
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return Nvml(pynvml)
