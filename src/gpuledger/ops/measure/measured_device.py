"""The device for measurements: its properties, and other processes on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gpuledger.errors import NoDeviceError, UsageError
from gpuledger.ops.database.records import Environment

if TYPE_CHECKING:
    from gpuledger.cards.card import Card

CPU = "cpu"
_CPU_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")
_UNKNOWN_CACHE_BYTES = 32 << 20


@dataclass(frozen=True)
class Device:
    """One device: ``sensors`` is the GPU, None on a CPU; ``cache_bytes`` is the last cache before memory."""

    device: str
    environment: Environment
    cache_bytes: int
    free_bytes: Callable[[], int]
    sensors: Card | None = None

    @property
    def on_card(self) -> bool:
        """Return whether it is a CUDA device."""
        return self.device != CPU


def find_device(device: str | None, *, force: bool = False, ours: Collection[int] = ()) -> Device:
    """Return the requested device; by default the first GPU, or the CPU without a GPU.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        force: Measure even if other processes use the GPU.
        ours: Processes that may use the GPU, because they are idle during measurements.

    Raises:
        NoDeviceError: no such device, or other processes are on it and ``force`` is not given.
        UsageError: neither ``cpu`` nor ``cuda`` with a number.
    """
    wanted = device or ("cuda:0" if torch.cuda.is_available() else CPU)
    if wanted == CPU:
        return _cpu()
    kind, _, number = wanted.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise UsageError(f"--device {wanted}: unknown device", hint="Use cpu, cuda or cuda:1")
    return _card(int(number or 0), force=force, ours=ours)


def _cpu() -> Device:
    import psutil

    cache_bytes = _last_cache_bytes()
    flags = {"threads": torch.get_num_threads(), "cache_bytes": cache_bytes}
    environment = Environment(cpu_name(), None, _torch_version(), None, flags)
    return Device(CPU, environment, cache_bytes, lambda: int(psutil.virtual_memory().available))


def cpu_name() -> str:
    """Return the model of the CPU, as reported by the system."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def _last_cache_bytes() -> int:
    sizes = []
    for place in _CPU_CACHE.glob("index*/size"):
        text = place.read_text(encoding="ascii").strip()
        if text[:-1].isdecimal() and text[-1] in "KM":
            sizes.append(int(text[:-1]) << (10 if text[-1] == "K" else 20))
    return max(sizes, default=_UNKNOWN_CACHE_BYTES)


def _torch_version() -> str:
    return str(torch.__version__)


def _card(index: int, *, force: bool, ours: Collection[int]) -> Device:
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        raise NoDeviceError(
            f"--device cuda:{index}: PyTorch has no such GPU here",
            hint="Use --device cpu, or see what is missing with: gpuledger doctor",
        )
    from gpuledger.cards.card import torch_uuid
    from gpuledger.cards.opening import open_cards

    properties = torch.cuda.get_device_properties(index)
    there = open_cards()
    sensors = there.find(torch_uuid(properties.uuid))
    if sensors is not None and not force:
        refuse_busy(sensors, ours)
    cache_bytes = int(properties.L2_cache_size)
    flags = {
        "cache_bytes": cache_bytes,
        "cudnn": torch.backends.cudnn.version(),
        "multiprocessors": properties.multi_processor_count,
        "power_limit_w": None if sensors is None else sensors.read_power_limit_w(),
    }
    environment = Environment(properties.name, there.driver_version, _torch_version(), torch.version.cuda, flags)
    return Device(f"cuda:{index}", environment, cache_bytes, lambda: int(torch.cuda.mem_get_info(index)[0]), sensors)


def refuse_busy(card: Card, ours: Collection[int] = ()) -> None:
    """Raise if processes other than this one and ``ours`` use a GPU, because they would affect measurements.

    Raises:
        NoDeviceError: there are such processes.
    """
    others = [(pid, held) for pid, held in card.read_processes() or () if pid not in (os.getpid(), *ours)]
    if others:
        pid, held = others[0]
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        holds = "" if held is None else f" ({held >> 20} MiB)"
        raise NoDeviceError(
            f"GPU {card.index}: in use by process {pid}{holds}{more}",
            hint="Wait until the GPU is free, or measure anyway with --allow-busy",
        )
