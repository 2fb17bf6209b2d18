"""What this machine's driver and cards allow, each question answered or its reason given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Card:
    """One card. A text in ``denied`` names what could not be read and why."""

    index: int
    name: str
    uuid: str
    total_bytes: int | None
    used_bytes: int | None
    driver_bytes: int | None
    denied: tuple[str, ...]


@dataclass(frozen=True)
class Driver:
    """NVML's answer: a version and the cards, or the reason why there is none."""

    version: str | None
    cards: tuple[Card, ...]
    reason: str | None


def probe_driver() -> Driver:
    """Return what NVML tells of this machine; nothing is changed on it.

    Source: NVML.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Driver(None, (), str(error))
    try:
        count = int(pynvml.nvmlDeviceGetCount())
        cards = tuple(_card(pynvml, index) for index in range(count))
        return Driver(str(pynvml.nvmlSystemGetDriverVersion()), cards, None)
    except pynvml.NVMLError as error:
        return Driver(None, (), str(error))
    finally:
        pynvml.nvmlShutdown()


def _card(nvml: Any, index: int) -> Card:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    denied = []
    memory = None
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError as error:
        denied.append(f"memory: {error}")
    for what, ask in (
        ("processes", nvml.nvmlDeviceGetComputeRunningProcesses),
        ("power", nvml.nvmlDeviceGetPowerUsage),
        ("energy", nvml.nvmlDeviceGetTotalEnergyConsumption),
    ):
        try:
            ask(handle)
        except nvml.NVMLError as error:
            denied.append(f"{what}: {error}")
    name, uuid = str(nvml.nvmlDeviceGetName(handle)), str(nvml.nvmlDeviceGetUUID(handle))
    total, used, driver = (None, None, None) if memory is None else (memory.total, memory.used, memory.reserved)
    return Card(index, name, uuid, total, used, driver, tuple(denied))
