"""Ends a process when the one that started it dies, even by SIGKILL (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
"""Of ``prctl(2)``. The signal comes when the parent's *thread* that forked ends, and survives ``execve``."""


def dying_with(parent_pid: int, number: int = signal.SIGKILL) -> Callable[[], None]:
    """Return what a child calls between fork and exec, so that ``number`` ends it when its parent dies.

    libc is loaded here and not in the child, where another thread of the parent may have held the loader's lock.
    """
    prctl = ctypes.CDLL(None).prctl

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent_pid:  # it died before it was asked about
            os.kill(os.getpid(), number)

    return die_with_parent
