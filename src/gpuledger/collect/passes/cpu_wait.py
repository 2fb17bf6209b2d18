"""Measure how long the program waits for a CPU, because other processes use it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

_SCHEDULED = Path("/proc/thread-self/schedstat")
"""Time on a CPU in ns, time that the thread was ready and waited for one in ns, number of turns."""


class CpuWait:
    """The share of time in which the thread that takes the steps is ready to run, and has no CPU.

    A load that lasts makes all steps longer alike, so that their variation does not show it.

    Source: the kernel's scheduler.
    """

    def __init__(self, source: Path = _SCHEDULED) -> None:
        self._source = source
        self._begun: tuple[int, int, int] | None = None

    def begin(self) -> None:
        """Start to measure, in the calling thread."""
        self._begun = self._read()

    def wait_frac(self) -> float | None:
        """Return the share since the beginning; None in another thread, or if the kernel does not count it."""
        begun, now = self._begun, self._read()
        if begun is None or now is None or begun[0] != now[0] or now[2] <= begun[2]:
            return None
        return min((now[1] - begun[1]) / (now[2] - begun[2]), 1.0)

    def _read(self) -> tuple[int, int, int] | None:
        """Return the thread, the time that it has waited, and the time now, in ns."""
        try:
            on_cpu_ns, waited_ns, _ = map(int, self._source.read_bytes().split())
        except (OSError, ValueError):
            return None
        return (threading.get_native_id(), waited_ns, time.monotonic_ns()) if on_cpu_ns else None
