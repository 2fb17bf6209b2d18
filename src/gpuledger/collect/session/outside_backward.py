"""Delay an action until no backward pass is running."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.calls import OutermostCalls
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.steps.step_counter import StepCounter


class OutsideBackward:
    """Runs an action now, or at the next module call outside backward, because a step can end inside backward.

    A dispatch mode or a profiler that is installed or removed inside backward would be reset by autograd at the end of
    it. The rest of the backward pass, and what follows until that call, belongs to the next step: it is under way then.
    """

    def __init__(self, guard: Guard, steps: StepCounter) -> None:
        self._guard = guard
        self._steps = steps
        self._action: Callable[[], None] = lambda: None
        self._calls: OutermostCalls | None = None

    def do(self, action: Callable[[], None]) -> None:
        """Run an action as soon as no backward pass is running. While one action waits, further ones are ignored."""
        if not torch_private.is_in_backward():
            action()
        elif self._calls is None:
            self._action = action
            began = self._guard.for_good(lambda *_: self._do_now())
            self._calls = OutermostCalls(began, lambda _: None, self._guard.absorbs)
            self._calls.install()

    def _do_now(self) -> None:
        """Run the waiting action at a module call, unless the call is inside backward as well (a recomputation)."""
        if not torch_private.is_in_backward():
            self.remove()
            self._steps.is_under_way = True
            try:
                self._action()
            finally:
                self._steps.is_under_way = False

    def remove(self) -> None:
        """Drop the waiting action."""
        if self._calls is not None:
            self._calls.remove()
            self._calls = None
