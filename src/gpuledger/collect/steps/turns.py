"""One thread at a time ends a step, and the others that wait for it are known."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Turns:
    """Calls functions in one thread at a time. A model can be called in several threads at once."""

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        """Ids of the threads that wait for their turn."""
        self._lock = threading.RLock()

    def take(self, action: Callable[[], None]) -> None:
        """Call a function once no other thread is inside one. Usable inside itself."""
        thread = threading.get_ident()
        try:
            self.waiting.add(thread)
            with self._lock:
                self.waiting.discard(thread)
                action()
        finally:
            self.waiting.discard(thread)
