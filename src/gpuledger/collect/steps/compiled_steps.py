"""Count steps of a program that compiles them whole, so that no call of a module and no step of an optimizer is seen.

Each call of a function that ``torch.compile`` has returned is observed at its beginning. Such calls are steps if they
update weights, as a compiled training step does. If no optimizer exists, each one is a step. Calls between backward and
the next call of a module are parts of that module's step: they are the program's own update of its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuledger.collect.adapter import torch_entrances
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.instrument import CannotInstrumentError, Observation, remove_all
from gpuledger.collect.adapter.observer import Observer
from gpuledger.collect.steps.call_steps import FollowedModule

PARTS_PER_WEIGHT = 2
"""Maximum number of calls for each weight that are parts of one step. A program with more calls no module any more."""


class CompiledCalls:
    """Calls ``began(key)`` at the beginning of calls of compiled functions; ``key`` is the same for each function.

    A call inside a module, inside another compiled function or inside backward is left out.

    Args:
        began: Called between :meth:`install` and :meth:`remove`.
        guard: Handles exceptions raised in gpuledger's code.
    """

    def __init__(self, began: Callable[[int], None], guard: Guard) -> None:
        self._began = began
        self._guard = guard
        self._observations: list[Observation] = []

    def install(self) -> None:
        """Start observing. Does nothing if this torch calls compiled functions in another way."""
        try:
            observer = Observer(self._enter, absorbs=self._guard.absorbs)
            self._observations.append(Observation(torch_entrances.compiled_call(), observer))
        except CannotInstrumentError:
            self.remove()

    def remove(self) -> None:
        """Stop observing."""
        remove_all(self._observations)

    def _enter(self, *_: Any) -> None:
        key = torch_entrances.outermost_compiled_call() if self._observations else None
        if key is not None:
            self._began(key)


class CompiledSteps:
    """Decides which calls of compiled functions are steps. A call ends when the next one of the same function begins.

    Args:
        version: Returns the number of weights, and a number that changes with every update of one.
    """

    def __init__(self, version: Callable[[], tuple[int, int]]) -> None:
        self.updates = False
        """Whether calls of the followed function update weights. Then calls of modules are no steps."""
        self._version = version
        self._followed = FollowedModule()
        self._before: tuple[int, int] | None = None
        """The weights at the beginning of the call in progress; None if there is none."""
        self._parts_left: int | None = None
        """Number of further calls that are parts of the step that a module's call has begun; None if not known yet."""

    @property
    def is_under_way(self) -> bool:
        """Return whether a call has begun that was not counted yet."""
        return self._before is not None

    def begins(self, key: int, *, waits: bool) -> bool:
        """Record the beginning of a call. Return whether the previous call of the same function was a step.

        Args:
            key: The function.
            waits: Whether a call without an update is no step, because an optimizer exists.
        """
        followed = self._followed.module_id
        if not self._followed.begins(key):
            return False
        ended = followed == key and self.ends(waits=waits)
        self._before = self._version()
        return ended

    def ends(self, *, waits: bool) -> bool:
        """Return whether the call in progress was a step, and forget it."""
        before, self._before = self._before, None
        if before is None:
            return False
        now = self._version()
        if before[0] == now[0] and before != now:
            self.updates = True
            return True
        return bool(now[0]) and not (waits or self.updates)

    def module_called(self) -> None:
        """Record the call of a module. What is updated until the next call was not updated by a compiled function."""
        self._parts_left = None
        if not self.updates:
            self._before = None

    def is_part(self, has_gradients: Callable[[], bool]) -> bool:
        """Return whether a call that begins is a part of the step that a module's call with gradients has begun.

        Args:
            has_gradients: Returns whether a weight has a gradient; asked at the first call after that of the module.
        """
        if self._parts_left is None:
            is_first = not (self.updates or self.is_under_way)
            self._parts_left = PARTS_PER_WEIGHT * self._version()[0] if is_first and has_gradients() else 0
        self._parts_left -= 1
        return self._parts_left >= 0
