"""Which of the processes on a GPU are the watched command's own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


class Family:
    """The watched process and all below it, looked at when a process is first seen on a GPU, and now and then.

    A process whose parents have ended belongs to it if it was seen while they lived.
    """

    def __init__(self) -> None:
        self.root: int | None = None
        self.on_card: set[int] = set()
        """Those of them that were seen on a GPU, and the root."""
        self.absent: set[int] = set()
        """Process ids on a GPU that nothing on this machine has: the driver counts in another namespace."""
        self._doubted: set[int] = set()
        self._members: set[int] = set()
        self._others: set[int] = set()

    def follow(self, root: int) -> None:
        """Begin with this process."""
        self.root = root
        self.on_card.add(root)
        self.look()

    def look(self) -> None:
        """Take in who lives below the root now; forget who has ended, and who was a stranger: numbers come again."""
        self._others.clear()
        self._members = {pid for pid in self._members if _exists(pid)}
        if self.root is not None:
            self._members |= {self.root, *_below(self.root)}

    def see(self, pids: Iterable[int]) -> None:
        """Take in who is on a GPU."""
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
                self._doubted.add(pid)  # it may have ended just now: it is looked for once more

    @property
    def is_elsewhere(self) -> bool:
        """Return whether the driver's process ids are those of another namespace, and none of them is ours."""
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
    """Return whether a process runs; one that has ended and was not waited for does not."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def children_of(pid: int) -> set[int]:
    """Return a process and all below it that live."""
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
    """Return the parent's process id; None of the first process, of one that is not there, or that cannot be seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        parent = int(stat.rpartition(b")")[2].split()[1])  # a name can hold spaces and brackets
    except (OSError, IndexError, ValueError):
        return None
    return parent or None


def _below(root: int) -> set[int]:
    """Return all that live below a process.

    Source: the kernel's lists of children; the parents of all processes where a kernel does not keep them.
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
