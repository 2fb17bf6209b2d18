"""Know optimizers from their creation on: calls of a model that one of them can train are no steps of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuledger.collect.adapter import torch_entrances
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.instrument import CannotInstrumentError, Observation
from gpuledger.collect.adapter.observer import Observer


class MadeOptimizers:
    """Reports new optimizers between :meth:`install` and :meth:`remove`.

    Without it, an optimizer that is made after the first call of a module is known from its first step on. A training
    that begins with many predictions, as a reinforcement learning does, would have been taken for an inference by then.

    Args:
        made: Called with each optimizer when it is complete.
        guard: Handles exceptions raised in gpuledger's code.
    """

    def __init__(self, made: Callable[[Any], None], guard: Guard) -> None:
        self._made = made
        self._guard = guard
        self._observations: list[Observation] = []

    def install(self) -> None:
        """Start reporting, if torch's function is that of a supported version."""
        observer = Observer(
            lambda optimizer, *_: optimizer, lambda optimizer, _: self._made(optimizer), absorbs=self._guard.absorbs
        )
        try:
            self._observations.append(Observation(torch_entrances.optimizer_init(), observer))
        except CannotInstrumentError:
            self._observations = []  # optimizers are known from their first step on

    def remove(self) -> None:
        """Stop reporting."""
        while self._observations:
            self._observations[-1].remove()
            self._observations.pop()
