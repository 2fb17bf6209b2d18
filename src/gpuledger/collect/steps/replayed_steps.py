"""Detect the steps of a training that is captured whole: replays of a CUDA graph that contains an optimizer's step.

A replay calls no hook. So a graph that was captured around an optimizer's step is known, and each of its replays is a
step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from gpuledger.collect.adapter import torch_entrances
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.instrument import CannotInstrumentError, Observation, remove_all
from gpuledger.collect.adapter.observer import Observer
from gpuledger.collect.steps.failed_captures import FailedCaptures


class ReplayedSteps:
    """Calls ``replayed()`` after each replay of a graph with an optimizer's step.

    It does so between :meth:`install` and :meth:`remove`. Captures that fail are noted.

    Args:
        replayed: Called after the replay. The GPU may not have finished it.
        guard: Handles exceptions raised in gpuledger's code.
    """

    def __init__(self, replayed: Callable[[], None], guard: Guard) -> None:
        self._replayed = replayed
        self._guard = guard
        self._captured: weakref.ref[Any] | None = None
        """The graph whose capture is in progress."""
        self._with_steps: dict[int, weakref.ref[Any]] = {}
        self._failures = FailedCaptures(lambda _: None)
        self._observations: list[Observation] = []

    def install(self, note: Callable[[str], None]) -> None:
        """Start detecting. Does nothing if this torch has other functions for CUDA graphs.

        Args:
            note: Adds a note to the run, about a capture that fails.
        """
        absorbs = self._guard.absorbs
        self._failures = FailedCaptures(note)
        begins = Observer(self._begins, fail=self._failed, absorbs=absorbs)
        ends = Observer(self._ends, fail=self._failed, absorbs=absorbs)
        replays = Observer(self._replays, self._has_replayed, absorbs=absorbs)
        try:
            for function, observer in zip(torch_entrances.cuda_graph(), (begins, ends, replays), strict=True):
                self._observations.append(Observation(function, observer))
        except CannotInstrumentError:
            self.remove()

    def remove(self) -> None:
        """Stop detecting."""
        remove_all(self._observations)

    def optimizer_stepped(self) -> None:
        """Record a step of the optimizer. If it was captured, replays of the graph are steps."""
        graph = None if self._captured is None else self._captured()
        if graph is not None and torch.cuda.is_current_stream_capturing():
            self._with_steps[id(graph)] = weakref.ref(graph)

    def _begins(self, graph: Any, *_: Any) -> Any:
        self._with_steps.pop(id(graph), None)
        self._captured = weakref.ref(graph)
        return graph

    def _ends(self, graph: Any, *_: Any) -> Any:
        self._captured = None
        return graph

    def _failed(self, graph: Any) -> None:
        """Forget a capture that has failed, and note it."""
        self._captured = None
        self._with_steps.pop(id(graph), None)
        self._failures.failed()

    def _replays(self, graph: Any) -> Any:
        known = self._with_steps.get(id(graph))
        return graph if known is not None and known() is graph else None

    def _has_replayed(self, *_: Any) -> None:
        self._replayed()
