"""Steps: what ends one, and which number it has."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.optimizer_hooks import OptimizerHook, after_steps, before_steps
from gpuledger.collect.adapter.program_objects import WeakIdentitySet


class StepCounter:
    """Counts steps: as the program marks them, else of the first optimizer seen, else calls of the first module called.

    A second optimizer (a GAN's), an optimizer per parameter and a step that GradScaler skips count nothing anew. Counts
    between :meth:`install` and :meth:`remove`.

    Args:
        guard: Wraps every callback that torch makes.
        before_optimizer: Called with each optimizer before its step.
        after_optimizer: Called with each optimizer after its step, before the step is counted.
        ended: Called with ``(kind, start_ns, end_ns)`` when a step has ended.
        weights_version: Returns a number that changes with every update of the weights. It tells of an optimizer whose
            step is compiled: there torch calls no hooks.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        before_optimizer: Callable[[Any], None],
        after_optimizer: Callable[[Any], None],
        ended: Callable[[str, int, int], None],
        weights_version: Callable[[], int] = lambda: 0,
    ) -> None:
        self.seen = 0
        self.trained = False
        self.optimizers = WeakIdentitySet()
        self._marked = False
        self._first_called = -1
        self._call_under_way = -1
        self._weights_version = weights_version
        self._version: int | None = None
        self._first: weakref.ref[Any] | None = None
        self._started_ns = time.time_ns()
        self._ending = threading.RLock()
        """Calls of a model can end in several threads at once."""
        self._before = before_optimizer
        self._after = after_optimizer
        self._ended = ended
        self._guard = guard
        self._hooks: list[OptimizerHook] = []

    def install(self) -> None:
        """Begin to count."""
        self._hooks.append(before_steps(self._guard(self._before_step), self._guard.absorbs))
        self._hooks.append(after_steps(self._guard(self._after_step), self._guard.absorbs))

    def remove(self) -> None:
        """Take the hooks out, or leave them without effect where they cannot go yet."""
        while self._hooks:
            self._hooks[-1].remove()
            self._hooks.pop()

    def restart_clock(self) -> None:
        """Let the step under way begin now: what came before was ours."""
        self._started_ns = time.time_ns()

    def expect_marks(self) -> None:
        """The program says that it will mark its steps: from now on nothing else counts."""
        self._marked = True

    def mark(self) -> None:
        """The program says itself that a step has ended; from now on only its word counts.

        Its first word takes the place of the step that was counted without it.
        """
        counted = self.seen and not self._marked
        self._marked = True
        if not counted:
            self._end("marked")

    def call_began(self, module_id: int, expects_training: Callable[[], bool]) -> None:
        """An outermost module is entered: all since its call before was a step, unless an optimizer is yet to step."""
        if self._marked or self.trained or self._first_called not in (-1, module_id):
            return
        before, self._version = self._version, self._weights_version()
        was_updated = before is not None and before != self._version
        used_graph = self._call_under_way == module_id
        self._call_under_way = -1
        if used_graph and (was_updated or not expects_training()):
            self._end("call")

    def call_ended(self, module_id: int, expects_training: Callable[[], bool]) -> None:
        """An outermost module was left: a step, unless something is trained or its graph is yet to be used."""
        if self._marked or self.trained:
            return
        if self._first_called < 0:
            self._first_called = module_id
        if module_id != self._first_called:
            return
        if torch.is_grad_enabled():
            self._call_under_way = module_id
        elif not expects_training():
            self._end("call")

    def _before_step(self, optimizer: Any) -> None:
        self.trained = True
        self.optimizers.add(optimizer)
        self._before(optimizer)

    def _after_step(self, optimizer: Any) -> None:
        self._after(optimizer)
        if self._first is None:
            self._first = weakref.ref(optimizer)
        if self._first() is optimizer and not self._marked:
            self._end("optimizer")

    def _end(self, kind: str) -> None:
        with self._ending:
            if not self._hooks:  # it was the last, while this thread waited
                return
            now_ns = time.time_ns()
            started_ns, self._started_ns = self._started_ns, now_ns
            self.seen += 1
            self._ended(kind, started_ns, now_ns)
