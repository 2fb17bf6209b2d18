"""Exceptions that say that memory could not be allocated: of a recorded operator, and the one that ends a recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuledger.collect.flight.host_failures import facts_of, find_host_failure
from gpuledger.collect.flight.library_failures import find_library_failure, last_error, linked


class MemoryErrors:
    """Finds such exceptions. Keeps none of them: it would keep what the program's frames refer to.

    Args:
        happened: Called with the facts of each.
        step: Returns the number of steps that have ended.
    """

    def __init__(self, happened: Callable[[dict[str, Any]], None], step: Callable[[], int]) -> None:
        self.recorded: list[dict[str, Any]] = []
        """The facts of all memory errors, if there is no flight recorder."""
        self._happened, self._step = happened, step
        self._last_seen: tuple[int, int] | None = None
        """The last exception of an operator by ``id``, and its step."""

    def see(self, error: BaseException) -> None:
        """Record an exception of an operator if the host could not allocate memory. The program can handle it."""
        facts = facts_of(error)
        if facts is not None:
            self._last_seen = id(error), self._step()
            self._happened(facts)

    def see_last(self) -> None:
        """Record the exception that ends the recording if a library or the host could not allocate memory."""
        error = last_error()
        if any((id(one), self._step()) == self._last_seen for one in linked(error)):
            return
        facts = find_library_failure(error) or find_host_failure(error)
        if facts is not None:
            self._happened(facts)
