"""Decide which calls of outermost modules are steps, in a program without an optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

SWITCH_CALLS = 8
"""Number of calls of another module, without one of the followed module, after which the other one is followed."""

HELD_CALLS = 16
"""Maximum number of calls that are held back because a training can follow."""


class FollowedModule:
    """The outermost module with the calls that are steps: the first one that is called.

    Another one replaces it if it contains it, as a model contains a part that was called alone before. So does one that
    is called SWITCH_CALLS times since the last call of the followed module, as the denoiser of a pipeline is after the
    text encoder. So does any other one if the followed module was freed, as by a program that evaluates several models.

    Args:
        container_of: Returns the outermost module that contains a module; -1 if the module is an outermost one.
        is_gone: Returns whether an outermost module was freed.
    """

    def __init__(self, container_of: Callable[[int], int], is_gone: Callable[[int], bool] = lambda _: False) -> None:
        self.module_id = -1
        self._others: Counter[int] = Counter()
        self._container_of = container_of
        self._is_gone = is_gone

    def begins(self, module_id: int) -> bool:
        """Record the start of a call. Return whether its module is followed."""
        if module_id != self.module_id and self._replaces(module_id):
            self.module_id = module_id
        if module_id == self.module_id:
            self._others.clear()
        return module_id == self.module_id

    def _replaces(self, module_id: int) -> bool:
        followed = self.module_id
        if followed < 0 or self._container_of(followed) == module_id or self._is_gone(followed):
            return True
        self._others[module_id] += 1
        return self._others[module_id] > SWITCH_CALLS


class HeldCalls:
    """Calls that look like steps, while a module that can be trained was not called yet.

    A program that computes something with a helper before its training has no steps there. A program that only calls
    modules has.

    Args:
        awaits_training: Returns whether a module in training mode with trainable parameters was not called yet.
        counted: Called with number, start and end of a call that turns out to be a step, outside the usual end of one.
    """

    def __init__(self, awaits_training: Callable[[], bool], counted: Callable[[int, int, int], None]) -> None:
        self.counted = counted
        self._awaits_training = awaits_training
        self._times_ns: list[tuple[int, int]] = []

    def holds(self) -> bool:
        """Return whether a call that ends now is held back."""
        return len(self._times_ns) < HELD_CALLS and self._awaits_training()

    def add(self, start_ns: int, end_ns: int) -> None:
        """Hold back a call."""
        self._times_ns.append((start_ns, end_ns))

    def release(self) -> list[tuple[int, int]]:
        """Return the start and end of the calls that were held back, and forget them."""
        held, self._times_ns = self._times_ns, []
        return held
