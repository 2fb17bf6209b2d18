"""When and how the processes of a run's ranks end, seen from the launcher beside them.

A rank that is killed cannot write that it was. So each rank leaves its process id in its directory, and a thread of the
launcher waits for these processes. They are children of another process (torchrun, mpirun), which alone gets their exit
status. The kernel shows it to their user, too, until that process has read it; since Linux 6.15, also afterwards.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuledger.collect.launch.ranks import PROCESS_ID
from gpuledger.model.run_directory import rank_directories

_LOOK_S = 0.05
"""Interval of looks for new ranks. A rank that ends within it after its first step is not seen."""
_SETTLED_NS = 1_000_000_000
"""Age of a directory's last change after which another one would show: file times are coarse."""
_EXIT_CODE = 51
"""Field of ``/proc/PID/stat`` from 0: exit status or signal, as ``wait`` returns it."""
_GET_INFO = 0xC040FF0B
"""``PIDFD_GET_INFO`` (Linux, linux/pidfd.h): asks a pidfd for a ``pidfd_info`` in its first version."""
_INFO = struct.Struct("Q52xi")
"""``pidfd_info``: which fields are asked for and known, others, and the exit status as ``wait`` returns it."""
_INFO_EXIT = 1 << 3
"""``PIDFD_INFO_EXIT``: the exit status, known once the parent process has read it."""


@dataclass(frozen=True)
class ProcessEnd:
    """When a process ended, in Unix ns, and its status, negative for the signal that ended it; None if unknown."""

    ended_ns: int
    status: int | None


class RankEnds:
    """Waits for the processes of a run's ranks in a thread, from :meth:`start` to :meth:`stop`.

    Processes of another machine or of another process namespace are left out. So are those of a kernel without
    ``pidfd_open``.
    """

    def __init__(self, run_directory: Path, run_id: str) -> None:
        self.found: dict[int, ProcessEnd] = {}
        """Process id -> its end."""
        self._run_directory = run_directory
        self._run_id = run_id.encode()
        self._awaited: dict[int, int] = {}
        self._seen: set[Path] = set()
        self._changed_ns = 0
        self._poll = select.poll()
        self._stop = -1
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to wait.

        Raises:
            OSError: the pipe for the end cannot be created.
            RuntimeError: the thread cannot be started.
        """
        reading, self._stop = os.pipe()
        self._poll.register(reading, select.POLLIN)
        self._thread = threading.Thread(target=self._wait, args=(reading,), daemon=True)
        self._thread.start()

    def stop(self) -> dict[int, ProcessEnd]:
        """Return the end of each process that has ended, by its id, and stop."""
        if self._stop >= 0:
            os.close(self._stop)
            self._stop = -1
        if self._thread is not None:
            self._thread.join()
        return self.found

    def _wait(self, reading: int) -> None:
        is_stopped = False
        while not is_stopped:
            self._look()
            ready = [number for number, _ in self._poll.poll(_LOOK_S * 1000)]
            now_ns = time.time_ns()
            is_stopped = reading in ready
            if is_stopped:
                self._look()
                ready = [number for number, _ in self._poll.poll(0)]
            for number in ready:
                if number in self._awaited:
                    self._ended(number, now_ns)
        for number in (reading, *self._awaited):
            os.close(number)

    def _look(self) -> None:
        """Wait for the processes of new ranks, too."""
        with suppress(OSError):  # the run is removed or replaced
            changed_ns = self._run_directory.stat().st_mtime_ns
            if changed_ns == self._changed_ns:
                return
            places = [place for _, place in rank_directories(self._run_directory) if place not in self._seen]
            found = [self._await(place) for place in places]
            is_settled = time.time_ns() - changed_ns > _SETTLED_NS
            self._changed_ns = changed_ns if all(found) and is_settled else 0

    def _await(self, place: Path) -> bool:
        """Wait for the process of a rank. Return False if it has not written its id yet."""
        number = (_read(place / PROCESS_ID).split() or [b""])[0]
        if not number.isdigit():
            return False
        self._seen.add(place)
        pid = int(number)
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return True
        if self._run_id in _read(Path(f"/proc/{pid}/environ")):
            self._awaited[descriptor] = pid
            self._poll.register(descriptor, select.POLLIN)
        else:
            os.close(descriptor)
        return True

    def _ended(self, descriptor: int, now_ns: int) -> None:
        pid = self._awaited.pop(descriptor)
        self._poll.unregister(descriptor)
        fields = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
        code = fields[_EXIT_CODE - 2] if len(fields) > _EXIT_CODE - 2 else b""
        is_zombie = fields[:1] == [b"Z"] and code.isdigit()
        status = int(code) if is_zombie else _status_read_by_parent(descriptor)
        self.found[pid] = ProcessEnd(now_ns, None if status is None else os.waitstatus_to_exitcode(status))
        os.close(descriptor)


def _status_read_by_parent(descriptor: int) -> int | None:
    """Return the status of a process that its parent has reaped, as ``wait`` returns it; None if it is not known.

    Only signals count: only the parent knows what exit status 1 means. Ray ends workers so that have done their work.
    """
    info = bytearray(_INFO.pack(_INFO_EXIT, 0))
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:  # the kernel is older than Linux 6.13
        return None
    known, status = _INFO.unpack(info)
    return status if known & _INFO_EXIT and os.WIFSIGNALED(status) else None


def _read(path: Path) -> bytes:
    """Return the content of a file; nothing if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
