"""Host memory of the process and its children: peaks of resident, pinned and shared memory."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from typing import Any

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.processes.memory_groups import host_limit_bytes

EVERY_NS = 2_000_000_000
"""Time between two reads."""

_HIGHEST = re.compile(r"\nVmHWM:\s*(\d+)")


class HostMemory:
    """Keeps the latest value and the peak of each kind of host memory, in bytes.

    The kernel keeps the highest resident memory of a process. It is the peak if it has risen since the beginning.
    The other kinds, and a process that had used more before, have the highest of the values that were read.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, int]] = {}
        self._read_ns = 0
        self._highest_before_bytes = _highest_resident_bytes()

    def read_now_and_then(self, now_ns: int) -> None:
        """Read if the last time is :data:`EVERY_NS` ago."""
        if now_ns - self._read_ns >= EVERY_NS:
            self._read_ns = now_ns
            self._read()

    def write_facts(self, journal: RankJournal) -> None:
        """Store the values as a fact."""
        self._read()
        kinds = [{"kind": kind, **sizes} for kind, sizes in self._kinds.copy().items()]
        journal.fact(host_memory=kinds, host_limit_bytes=host_limit_bytes())

    def _read(self) -> None:
        found = {**_of_process(os.getpid()), "workers": _of_children(), "dev_shm": _dev_shm_bytes()}
        found["pinned"] = torch_private.pinned_bytes()
        for kind, size in found.items():
            if size is not None:
                before = self._kinds.get(kind, {"peak_bytes": 0})
                self._kinds[kind] = {"bytes": size, "peak_bytes": max(size, before["peak_bytes"])}
        highest_bytes = _highest_resident_bytes()
        if "resident" in self._kinds and highest_bytes > self._highest_before_bytes:
            resident = self._kinds["resident"]
            resident["peak_bytes"] = max(highest_bytes, resident["peak_bytes"])


def _of_process(pid: int) -> dict[str, int | None]:
    """Return resident memory, and the shared part of it."""
    sizes = _sizes_of(pid)
    return {"resident": sizes[1], "shared": sizes[2]} if sizes else {}


def _sizes_of(pid: int) -> list[int]:
    """Return the sizes of address space, resident memory and its shared part; empty if they cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return []
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return [int(pages) * page_bytes for pages in fields[:3]]


def _highest_resident_bytes() -> int:
    """Return the highest resident memory of this process until now; 0 if the system does not report it."""
    try:
        found = _HIGHEST.search(Path("/proc/self/status").read_text())
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0


def _of_children() -> int | None:
    """Return the private resident memory of the direct children, such as data workers; None without children."""
    try:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    except OSError:
        return None
    sizes: list[dict[str, Any]] = [_of_process(int(pid)) for pid in children]
    return sum(one["resident"] - one["shared"] for one in sizes if one) if children else None


def _dev_shm_bytes() -> int | None:
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108 - only its size is read
    except OSError:
        return None
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def usable_bytes() -> int | None:
    """Return the host memory that this process may use: the smallest of its limits and the machine's memory."""
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    known = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    found = [*known, *(size for size in (host_limit_bytes(), _of_machine("MemTotal")) if size is not None)]
    return min(found, default=None)


def mapped_bytes() -> int | None:
    """Return the size of this process's address space, if that has the smallest limit of all; None otherwise.

    It is larger than the resident memory: pages that were never written and files count, too.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] != usable_bytes():
        return None
    return next(iter(_sizes_of(os.getpid())), None)


def available_bytes() -> int | None:
    """Return the machine's memory that is available to programs; None if the system does not report it."""
    return _of_machine("MemAvailable")


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of a process; None if it cannot be read."""
    return _of_process(pid).get("resident")


def _of_machine(name: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(sizes[0]) << 10 if sizes else None
