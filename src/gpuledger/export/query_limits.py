"""How much memory and time one SQL query may take.

DuckDB keeps most of its own memory within ``memory_limit``, but not every text and list that a function makes, and it
stops an interrupted query between steps alone. So the process gets a limit of its own, and is left where a query does
not stop.
"""

from __future__ import annotations

import os
import re
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.errors import GpuLedgerError
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    import duckdb

GRACE_S = 5.0
"""How long an interrupted query has to stop."""
_ROOM_BYTES = 512 << 20
"""Beside the limit: Arrow's reading of the tables, and rows on their way to the terminal."""
_THREAD_BYTES = 16 << 20
"""Of each thread that DuckDB and Arrow may start."""


@dataclass(frozen=True)
class QueryLimits:
    """What one query may take; ``leave`` ends the process where a query does not stop."""

    memory_bytes: int = 1 << 30
    time_s: float = 60.0
    leave: Callable[[GpuLedgerError], None] = lambda error: None

    def out_of_time(self) -> GpuLedgerError:
        """Return the error of a query that took too long."""
        return GpuLedgerError(
            f"sql: stopped after {self.time_s:g} s, the time limit", hint="Allow more with --timeout 10min"
        )

    def out_of_memory(self) -> GpuLedgerError:
        """Return the error of a query that needs too much memory."""
        limit = format_bytes(self.memory_bytes)
        return GpuLedgerError(
            f"sql: needs more than {limit}, the memory limit", hint="Allow more with --memory-limit 4GiB"
        )


class Stopwatch:
    """Counts the time that a query is worked on, not that in which its rows wait to be printed."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, limits: QueryLimits) -> None:
        self._connection = connection
        self._limits = limits
        self._left_s = limits.time_s

    @contextmanager
    def running(self) -> Iterator[None]:
        """Interrupt the query where it works on for longer than is left.

        Raises:
            GpuLedgerError: nothing is left.
        """
        if self._left_s <= 0:
            raise self._limits.out_of_time()
        begun = time.monotonic()
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(done, self._left_s), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self._left_s -= time.monotonic() - begun

    def _watch(self, done: threading.Event, left_s: float) -> None:
        if done.wait(left_s):
            return
        self._connection.interrupt()
        if not done.wait(GRACE_S):
            self._limits.leave(self._limits.out_of_time())


@contextmanager
def limited_memory(limits: QueryLimits) -> Iterator[None]:
    """Let this process take no more than the limit above what it holds now, where the system can say so (Linux).

    Raises:
        GpuLedgerError: more was needed.
    """
    held_bytes = _held_bytes()
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if held_bytes is not None:
        room_bytes = _ROOM_BYTES + 2 * _THREAD_BYTES * (os.cpu_count() or 1)
        most_bytes = held_bytes + limits.memory_bytes + room_bytes
        if before[1] == resource.RLIM_INFINITY or most_bytes < before[1]:
            resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, before[1]))
    try:
        yield
    except MemoryError as error:
        raise limits.out_of_memory() from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _held_bytes() -> int | None:
    try:
        found = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) << 10 if found else None
