"""Processes that the program waits for: one process stands for all of them, so that nothing would end a wait."""

from __future__ import annotations

import multiprocessing.synchronize
from collections.abc import Callable
from typing import Any

from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.gpu.sizes import caller

_WAITS = (
    (multiprocessing.synchronize.Barrier, "a barrier", 0),
    (multiprocessing.synchronize.Event, "an event", True),
)
"""Class of an object that several processes share, what it is called, and what its ``wait`` returns."""


class EndedProcesses:
    """What ``spawn(join=False)`` returns: its processes have ended."""

    processes: tuple[object, ...] = ()

    def join(self, *_args: Any, **_how: Any) -> bool:
        """Return that all processes have ended."""
        return True

    def pids(self) -> list[int]:
        """Return the ids of the processes: none."""
        return []


def end_waits(patches: Patches, say: Callable[[str], None]) -> None:
    """Let waits for other processes return at once.

    Args:
        patches: Restores everything.
        say: Gets a sentence for each of them.
    """

    def returning(what: str, result: object) -> Callable[..., object]:
        def wait(*_args: Any, **_how: Any) -> object:
            say(f"{caller()}: {what} of processes was passed at once, because one process stands for all.")
            return result

        return wait

    for shared, what, result in _WAITS:
        patches.put(shared, "wait", returning(what, result))
