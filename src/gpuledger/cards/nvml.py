"""NVML as recordings use it: cards by their UUID, which is what torch knows of them."""

from __future__ import annotations

import os
from typing import Any

from gpuledger.cards.sensors import CardSensors, MemoryReading

__all__ = ["DRIVER_NODES", "MemoryReading", "Nvml", "open_nvml"]

DRIVER_NODES = ("/dev/nvidiactl", "/dev/dxg")
"""One of these is there where a driver is: of Linux, or of Windows below WSL."""

_NO_NUMBER = -1
"""Stands for the number of a card that is known by its UUID."""


class Nvml:
    """An open NVML."""

    def __init__(self, binding: Any) -> None:
        self._nvml = binding
        self._cards: dict[str, CardSensors] = {}

    def _card(self, uuid: str) -> CardSensors:
        card = self._cards.get(uuid)
        if card is None:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            card = self._cards[uuid] = CardSensors(self._nvml, _NO_NUMBER, handle)
        return card

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
            return self._card(uuid).read_memory()
        except self._nvml.NVMLError:
            return None

    def read_processes(self, uuid: str) -> list[tuple[int, int | None]] | None:
        """Return ``(pid, bytes)`` of every process on the card; None where it cannot be read."""
        try:
            return self._card(uuid).list_processes()
        except self._nvml.NVMLError:
            return None


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
