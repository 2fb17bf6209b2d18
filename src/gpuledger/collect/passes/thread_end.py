"""Call a function when a thread ends, in that thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


class _Watch:
    """Lies in the thread-local storage of a thread, which Python clears in this thread when it ends.

    Args:
        waiting: Contains the function to call; empty if it is not to be called any more.
    """

    def __init__(self, waiting: list[Callable[[], None]]) -> None:
        self._waiting = waiting

    def __del__(self) -> None:
        """Call the function."""
        while self._waiting:
            self._waiting.pop()()


class ThreadEnd:
    """Watches one thread at a time."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._waiting: list[Callable[[], None]] = []

    def watch(self, called: Callable[[], None]) -> None:
        """Call ``called``, which must not raise, when the calling thread ends. Replaces an earlier function.

        Not for the main thread, which ends with the program.
        """
        self.stop()
        if threading.get_ident() != threading.main_thread().ident:
            self._waiting = [called]
            self._local.watch = _Watch(self._waiting)

    def stop(self) -> None:
        """Do not call the function any more."""
        self._waiting.clear()
        self._waiting = []
