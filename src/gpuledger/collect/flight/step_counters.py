"""Counters at the end of every step of the program: 37 bytes per step and device."""

from __future__ import annotations

import os
import re
import time
from array import array
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuledger.collect.adapter import torch_private
from gpuledger.files.writing import own_open
from gpuledger.model.journal.journal import Part
from gpuledger.model.journal.step_memory import HOST_UNIT_BYTES, MOST, UNIT_BYTES

UNKNOWN = -1
HOST_EVERY_NS = 10_000_000
"""Shortest time between two reads of the process's memory."""
HOST_FRAC = 0.001
"""Largest share of the time of a program on a GPU that these reads take: one takes 20 to 170 µs."""


class DeviceCounters(NamedTuple):
    """The counters of one device. A value that is not known is -1."""

    device_idx: int
    allocated_bytes: int = UNKNOWN
    reserved_bytes: int = UNKNOWN
    peak_allocated_bytes: int = UNKNOWN
    blocks: int = UNKNOWN
    allocations: int = UNKNOWN
    retries: int = UNKNOWN


_OF_STEP = ("step", "end_ns", "host_bytes")
_WIDTH = len(_OF_STEP) + len(DeviceCounters._fields)


class StepCounters:
    """Collects one row per step and device, and moves them into the journal.

    Args:
        read_devices: Returns the counters of the devices in use.
        read_host: Returns the host memory that the process holds, in bytes, or -1.
        host_frac: Largest share of the program's time that this takes.
        clock: Returns a time in ns, to find out how long that takes.
    """

    def __init__(
        self,
        read_devices: Callable[[], list[DeviceCounters]],
        read_host: Callable[[], int] | None = None,
        *,
        host_frac: float = 1.0,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.latest: list[DeviceCounters] = []
        """The counters of the last step."""
        self.host_bytes = UNKNOWN
        self._read_devices = read_devices
        self._read_host = read_host or held_bytes
        self._host_frac, self._clock = host_frac, clock
        self._from_ns = time.time_ns()
        self._next_host_ns = 0
        self._values = array("q")
        """Row after row, as they are read: the program waits meanwhile."""

    def read(self, step: int, end_ns: int) -> None:
        """Store the counters at the end of a step.

        One call of C code appends a row. Python runs signal handlers of the program between bytecodes, so none can
        leave a row incomplete.
        """
        if end_ns >= self._next_host_ns:
            began_ns = self._clock()
            self.host_bytes = self._read_host()
            took_ns = self._clock() - began_ns
            self._next_host_ns = end_ns + max(HOST_EVERY_NS, round(took_ns / self._host_frac))
        self.latest = self._read_devices()
        for one in self.latest:
            self._values.extend((step, end_ns, self.host_bytes, *one))

    def allocations(self) -> int:
        """Return the number of allocations on all GPUs in use since the process started."""
        return allocations_of(self._read_devices())

    @property
    def rows(self) -> int:
        """Return the number of rows that are not in the journal yet."""
        return len(self._values) // _WIDTH

    def drain(self, part: Part) -> None:
        """Move the rows into ``part``."""
        if self.rows:
            values, self._values = self._values, array("q")
            part.facts["step_memory_from_ns"] = self._from_ns
            columns = dict(zip((*_OF_STEP, *DeviceCounters._fields), _columns(values), strict=True))
            allocations = columns["allocations"]
            part.add(
                "step_memory",
                device_idx=np.minimum(columns["device_idx"], 127),
                step=columns["step"],
                end_ms=np.clip((columns["end_ns"] - self._from_ns) // 1_000_000, 0, MOST),
                allocated=_units(columns["allocated_bytes"], UNIT_BYTES),
                reserved=_units(columns["reserved_bytes"], UNIT_BYTES),
                peak=_units(columns["peak_allocated_bytes"], UNIT_BYTES),
                blocks=np.minimum(columns["blocks"], MOST),
                allocations=np.where(allocations < 0, UNKNOWN, allocations & MOST),
                retries=np.minimum(columns["retries"], MOST),
                host=_units(columns["host_bytes"], HOST_UNIT_BYTES),
            )


def allocations_of(devices: Iterable[DeviceCounters]) -> int:
    """Return the number of allocations on all GPUs."""
    return sum(max(one.allocations, 0) for one in devices if one.device_idx >= 0)


def _columns(values: array[int]) -> NDArray[np.int64]:
    return np.frombuffer(values, dtype=np.int64).reshape(-1, _WIDTH).T


def _units(sizes_bytes: NDArray[np.int64], unit_bytes: int) -> NDArray[np.int64]:
    return np.where(sizes_bytes < 0, UNKNOWN, np.minimum(-(-sizes_bytes // unit_bytes), MOST))


def held_bytes() -> int:
    """Return the host memory in bytes that only this process can give back: anonymous, shared, and swapped pages.

    Resident memory also has pages of files, such as libraries, which the kernel loads and drops at any time.

    Source: /proc/self/status. Linux before 4.5 and some sandboxes do not divide resident memory: then it is all of it,
    from /proc/self/statm. -1 if there is neither.
    """
    try:
        parts = _HELD.findall(_read_own("/proc/self/status"))
        if parts:
            return sum(map(int, parts)) << 10
        return int(_read_own("/proc/self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return UNKNOWN


_HELD = re.compile(rb"\n(?:RssAnon|RssShmem|VmSwap):\s*(\d+)")


def _read_own(path: str) -> bytes:
    with own_open(path, "rb", buffering=0) as file:
        return bytes(file.read(1 << 16))


class CudaCounters:
    """Reads the allocator's counters of the devices that the process uses, one call per device.

    Args:
        device_count: Number of devices visible to the process. A device counts as used once it has allocated memory;
            unused ones are looked at again every ``LOOK_AGAIN`` steps.
    """

    LOOK_AGAIN = 64

    def __init__(self, device_count: int) -> None:
        self._count = device_count
        self._used: list[int] = []
        self._reads = 0

    def __call__(self) -> list[DeviceCounters]:
        """Return the counters of the devices in use."""
        if self._reads % self.LOOK_AGAIN == 0 or not self._used:
            self._used = [one for one in range(self._count) if torch_private.has_allocated(one)]
        self._reads += 1
        return [_of_device(one) for one in self._used]


def _of_device(device_idx: int) -> DeviceCounters:
    stats = torch_private.memory_stats(device_idx)
    allocated, blocks = stats["allocated_bytes"]["all"], stats["allocation"]["all"]
    return DeviceCounters(
        device_idx,
        allocated["current"],
        stats["reserved_bytes"]["all"]["current"],
        allocated["peak"],
        blocks["current"],
        blocks["allocated"],
        stats.get("num_alloc_retries", UNKNOWN),
    )
