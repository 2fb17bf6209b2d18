"""Detect steps that are replays of CUDA graphs. A replay calls no hook, so what a graph has captured is remembered.

A replay of a graph with an optimizer's step is a step of that optimizer. A replay of a graph with calls of modules is
like a call of one of them, unless it is itself a part of a module's call or of backward.
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

MOST_CAPTURES = 64
"""Number of captures that prepare the program's work. A program that captures more of them does it as its work."""


class ReplayedGraph:
    """What a CUDA graph has captured.

    Attributes:
        graph: The graph.
        has_step: Whether a step of the optimizer was captured.
        module_ids: The outermost modules that were called in the capture, in their order.
        has_backward: Whether backward can follow the calls, because autograd has recorded them.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = weakref.ref(graph)
        self.has_step = self.has_backward = False
        self.module_ids: list[int] = []


class ReplayedSteps:
    """Observes captures and replays between :meth:`install` and :meth:`remove`. Notes captures that fail.

    Args:
        prepares: Called at the beginning of a capture, and before the first replay that is like a call.
        stepped: Called after each replay of a graph with an optimizer's step. The GPU may not have finished it.
        began: Called before each replay of a graph with calls of modules, outside all calls.
        ended: Called after it.
        guard: Handles exceptions raised in gpuledger's code.
    """

    def __init__(
        self,
        *,
        prepares: Callable[[], None],
        stepped: Callable[[], None],
        began: Callable[[ReplayedGraph], None],
        ended: Callable[[ReplayedGraph], None],
        guard: Guard,
    ) -> None:
        self._prepares = prepares
        self._captures, self._was_like_call = 0, False
        self._stepped = stepped
        self._began, self._ended = began, ended
        self._guard = guard
        self._captured: ReplayedGraph | None = None
        """The capture in progress."""
        self._known: dict[int, ReplayedGraph] = {}
        """Id of a graph -> what it has captured, if replays of it can be steps."""
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
        captured = self._in_capture()
        if captured is not None:
            captured.has_step = True

    def module_called(self, module_id: int) -> None:
        """Record the beginning of a call of an outermost module. If it is captured, replays of the graph are calls."""
        captured = self._in_capture()
        if captured is not None:
            captured.has_backward = captured.has_backward or torch.is_grad_enabled()
            if module_id not in captured.module_ids:
                captured.module_ids.append(module_id)

    def _in_capture(self) -> ReplayedGraph | None:
        """Return the capture in progress, if this thread makes it; and remember it."""
        captured = self._captured
        graph = None if captured is None else captured.graph()
        if captured is None or graph is None or not torch.cuda.is_current_stream_capturing():
            return None
        self._known[id(graph)] = captured
        return captured

    def _begins(self, graph: Any, *_: Any) -> Any:
        self._known.pop(id(graph), None)
        self._captured = ReplayedGraph(graph)
        self._captures += 1
        if self._captures <= MOST_CAPTURES:
            self._prepares()
        return graph

    def _ends(self, graph: Any, *_: Any) -> Any:
        self._captured = None
        return graph

    def _failed(self, graph: Any) -> None:
        """Forget a capture that has failed, and note it."""
        self._captured = None
        self._known.pop(id(graph), None)
        self._failures.failed()

    def _replays(self, graph: Any) -> tuple[ReplayedGraph, bool] | None:
        """Return what a graph has captured that is about to be replayed, and whether the replay is like a call."""
        known = self._known.get(id(graph))
        if known is None or known.graph() is not graph:
            return None
        is_call = bool(known.module_ids) and not torch_entrances.is_inside_call()
        if is_call:
            if not self._was_like_call:
                self._was_like_call = True
                self._prepares()
            self._began(known)
        return (known, is_call) if is_call or known.has_step else None

    def _has_replayed(self, token: tuple[ReplayedGraph, bool], *_: Any) -> None:
        known, is_call = token
        if known.has_step:
            self._stepped()
        if is_call:
            self._ended(known)
