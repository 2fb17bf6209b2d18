"""Closing what cannot always be closed at once, such as a dispatch mode that handles an operator."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.collect.adapter.calls import OutermostCalls
from gpuledger.collect.adapter.guard import Guard


class RepeatedClosing:
    """Closes now, or at one of the next module calls.

    Args:
        guard: Handles exceptions raised inside a module call.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._again: OutermostCalls | None = None

    def close(self, *closings: Callable[[], bool]) -> None:
        """Call each of ``closings`` until one returns False. If one does, call them again at the next module calls."""
        is_closed = all(close() for close in closings)
        if is_closed and self._again is not None:
            self._again.remove()
            self._again = None
        elif not is_closed and self._again is None:
            again = self._guard.for_good(lambda *_: self.close(*closings))
            self._again = OutermostCalls(again, lambda _: None, self._guard.absorbs)
            self._again.install()
