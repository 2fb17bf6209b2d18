"""Count steps: detect the end of each step and number it."""

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
    """Counts steps: marked by the program, or else steps of the first optimizer, or else calls of the first module.

    A second optimizer (of a GAN), one optimizer per parameter, and steps that GradScaler skips do not add steps. Counts
    between :meth:`install` and :meth:`remove`.

    Args:
        guard: Wraps every callback from torch.
        before_optimizer: Called with each optimizer before its step.
        after_optimizer: Called with each optimizer after its step, before the step is counted.
        ended: Called with ``(kind, start_ns, end_ns)`` at the end of each step.
        weights_version: Returns the number of weights, and a number that changes with every update of one. Detects an
            optimizer with a compiled step, for which torch calls no hooks.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        before_optimizer: Callable[[Any], None],
        after_optimizer: Callable[[Any], None],
        ended: Callable[[str, int, int], None],
        weights_version: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self.seen = 0
        self.trained = False
        self.optimizers = WeakIdentitySet()
        self._marked = False
        self._first_called = -1
        self._call_under_way = -1
        self._weights_version = weights_version
        self._version: tuple[int, int] | None = None
        self._first: weakref.ref[Any] | None = None
        self._started_ns = time.time_ns()
        self._ending = threading.RLock()
        """A model can be called in several threads at once."""
        self._before = before_optimizer
        self._after = after_optimizer
        self._ended = ended
        self._guard = guard
        self._hooks: list[OptimizerHook] = []

    def install(self) -> None:
        """Start counting."""
        self._hooks.append(before_steps(self._guard(self._before_step), self._guard.absorbs))
        self._hooks.append(after_steps(self._guard(self._after_step), self._guard.absorbs))

    def remove(self) -> None:
        """Remove the hooks. A hook that cannot be removed yet becomes a no-op."""
        while self._hooks:
            self._hooks[-1].remove()
            self._hooks.pop()

    def restart_clock(self) -> None:
        """Start the current step now, so that it does not include gpuledger's own pause."""
        self._started_ns = time.time_ns()

    def expect_marks(self) -> None:
        """Count only marked steps from now on: the program has announced that it marks them."""
        self._marked = True

    def mark(self) -> None:
        """End a step that the program marks. From now on, only marked steps count.

        The first mark replaces the step that was counted automatically.
        """
        counted = self.seen and not self._marked
        self._marked = True
        if not counted:
            self._end("marked")

    def call_began(self, module_id: int, expects_training: Callable[[], bool]) -> None:
        """Record the entry of an outermost module.

        Everything since its previous call was a step, unless an optimizer follows.
        """
        if self._marked or self.trained or self._first_called not in (-1, module_id):
            return
        before, self._version = self._version, self._weights_version()
        was_updated = before is not None and before[0] == self._version[0] and before != self._version
        used_graph = self._call_under_way == module_id
        self._call_under_way = -1
        if used_graph and (was_updated or not expects_training()):
            self._end("call")

    def call_ended(self, module_id: int, expects_training: Callable[[], bool]) -> None:
        """Record the exit of an outermost module.

        The call was a step, unless the model is trained or backward can follow.
        """
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
            if not self._hooks:  # removed while this thread waited for the lock
                return
            now_ns = time.time_ns()
            started_ns, self._started_ns = self._started_ns, now_ns
            self.seen += 1
            self._ended(kind, started_ns, now_ns)
