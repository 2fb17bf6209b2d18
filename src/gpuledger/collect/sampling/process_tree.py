"""Find which processes on a GPU belong to the watched command."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


class ProcessFamily:
    """The watched process and its descendants. They are listed when a new process appears on a GPU, and periodically.

    A process with parents that have ended belongs to it if it was listed while they were running.
    """

    def __init__(self) -> None:
        self.root: int | None = None
        self.on_card: set[int] = set()
        """Processes of the family that were seen on a GPU, and the root."""
        self.absent: set[int] = set()
        """Process ids on a GPU that do not exist on this machine: the driver uses another namespace."""
        self._doubted: set[int] = set()
        self._members: set[int] = set()
        self._others: set[int] = set()

    def follow(self, root: int) -> None:
        """Use this process as the root."""
        self.root = root
        self.on_card.add(root)
        self.look()

    def look(self) -> None:
        """List the descendants of the root now. Forget all ended processes and strangers, because ids are reused."""
        self._others.clear()
        self._members = {pid for pid in self._members if _exists(pid)}
        if self.root is not None:
            self._members |= {self.root, *_below(self.root)}

    def see(self, pids: Iterable[int]) -> None:
        """Add the processes that are on a GPU now."""
        for pid in pids:
            if pid in self._others or pid in self.on_card:
                continue
            if self._is_member(pid):
                self.on_card.add(pid)
            elif _exists(pid) or pid in self.absent:
                self._others.add(pid)
            elif pid in self._doubted:
                self.absent.add(pid)
            else:
                self._doubted.add(pid)  # it may have just ended: check again when it is next listed

    @property
    def is_elsewhere(self) -> bool:
        """Return whether the driver's process ids are of another namespace, and none of them is of the family."""
        return bool(self.absent) and not self.on_card - {self.root}

    def _is_member(self, pid: int) -> bool:
        line = [pid]
        while (parent := _parent_of(line[-1])) is not None and line[-1] not in self._members:
            line.append(parent)
        if line[-1] not in self._members:
            return False
        self._members.update(line)
        return True


def is_alive(pid: int) -> bool:
    """Return whether a process is running. A zombie is not."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def children_of(pid: int) -> set[int]:
    """Return a process and its running descendants."""
    import psutil

    try:
        process = psutil.Process(pid)
        return {pid, *(child.pid for child in process.children(recursive=True))}
    except psutil.Error:
        return {pid} if os.path.exists(f"/proc/{pid}") else set()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _parent_of(pid: int) -> int | None:
    """Return the parent's process id; None for the first process, or if the process does not exist or is hidden."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        parent = int(stat.rpartition(b")")[2].split()[1])  # a name can contain spaces and brackets
    except (OSError, IndexError, ValueError):
        return None
    return parent or None


def _below(root: int) -> set[int]:
    """Return all running descendants of a process.

    Source: the kernel's lists of children; if the kernel does not have them, the parents of all processes.
    """
    if not Path(f"/proc/{root}/task/{root}/children").exists():
        return children_of(root)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        children = _children_listed(waiting.pop()) - found
        found |= children
        waiting += children
    return found


def _children_listed(pid: int) -> set[int]:
    found: set[int] = set()
    with suppress(OSError):
        for place in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found.update(map(int, (place / "children").read_bytes().split()))
    return found
