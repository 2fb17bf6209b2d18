"""Waits for the end of a backward pass with what must not be done inside it."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.calls import OutermostCalls
from gpuledger.collect.adapter.guard import Guard


class OutsideBackward:
    """Does something now, or at the next call of a module where autograd is at work: a step can end inside backward.

    What is put in or taken out there, a dispatch mode or a profiler, autograd would undo at its end.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._action: Callable[[], None] = lambda: None
        self._calls: OutermostCalls | None = None

    def do(self, action: Callable[[], None]) -> None:
        """Do something as soon as no backward pass is under way; while one thing waits, another is not taken."""
        if not torch_private.is_in_backward():
            action()
        elif self._calls is None:
            self._action = action
            began = self._guard.for_good(lambda *_: self._do_now())
            self._calls = OutermostCalls(began, lambda _: None, self._guard.absorbs)
            self._calls.install()

    def _do_now(self) -> None:
        """A module is called: do what had to wait, unless it is called inside backward as well (a recomputation)."""
        if not torch_private.is_in_backward():
            self.remove()
            self._action()

    def remove(self) -> None:
        """Wait no longer."""
        if self._calls is not None:
            self._calls.remove()
            self._calls = None
