"""The operators between a backward pass and the next call of a module, beside a recorder that does not see operators.

The history of the CUDA allocator names no operators. Where a program has no optimizer of PyTorch, a dispatch mode is
active from the end of a recorded backward pass to the next call of a module, the next pass, or the end of recording. It
records no memory, and shows operators to :class:`..variables.updates.WeightUpdates`. The first pass is not followed: an
optimizer is often not known before its first step.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from gpuledger.collect.adapter import dispatch_modes, other_threads, torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.held_tensors import KeyedReference
from gpuledger.collect.adapter.program_objects import (
    is_wrapper,
    local_part,
    storage_address,
    storage_of,
    without_overrides,
)
from gpuledger.collect.attribution.modules import ModuleTracker
from gpuledger.collect.memory.dispatch_mode import OperatorMode
from gpuledger.collect.memory.operator_times import OperatorTimes
from gpuledger.collect.variables.updates import WeightUpdates


class FollowedOperators:
    """Shows the operators of the thread that runs backward to ``updates``.

    Args:
        updates: Follows gradients through operators.
        guard: Handles exceptions raised in gpuledger's code.
        optimizers: The known optimizers of PyTorch. If there is one, nothing is followed.
        look: Searches for optimizers. Called once, after the second pass.
    """

    def __init__(
        self, updates: WeightUpdates, guard: Guard, optimizers: Iterable[Any], look: Callable[[], object]
    ) -> None:
        self.times: OperatorTimes | None = None
        self._updates, self._guard = updates, guard
        self._optimizers = optimizers
        self._look = look
        self._passes = 0
        self._mode: OperatorMode | None = None
        self._pid = os.getpid()
        self._watched: dict[int, KeyedReference] = {}
        self._ended: deque[KeyedReference] = deque()

    def follow(self, tracker: ModuleTracker) -> None:
        """Follow operators after each backward pass that a tracker observes, until :meth:`retire`."""
        self._updates.on_kept = self._watch
        tracker.on_backward_begin, tracker.on_backward_left = self.end, self.begin

    def begin(self) -> None:
        """Follow operators from now on, after a backward pass."""
        self._forget_freed()
        if not self._updates.is_on:  # no gradients, or a pass inside of a module's call
            return
        self._passes += 1
        if self._passes <= 1 or any(True for _ in self._optimizers):
            return
        if self._passes == 2:
            self._look()
            if any(True for _ in self._optimizers):
                return
        if self._mode is not None:
            if self._mode.thread_id == threading.get_ident():
                self._mode.come_back(self)
            return
        busy = dispatch_modes.has_dispatch_mode() or dispatch_modes.is_in_transform() or torch_private.is_profiling()
        if not busy and dispatch_modes.may_enter_mode() and not torch_private.is_in_backward():
            self._mode = OperatorMode(self, self._guard)
            self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch has not annotated it

    def end(self) -> bool:
        """Follow no more operators until :meth:`begin`. Return False if the mode cannot be removed now."""
        if self._mode is not None:
            self._mode.retire()
            if self._mode.take_out():
                self._mode = None
        return self._mode is None

    def retire(self) -> bool:
        """Follow no more operators. Return False if the mode cannot be removed now: call it again."""
        self._updates.on_kept = lambda _: None
        self._watched.clear()
        return self.end()

    def see(self, operator: Any, results: Any, arguments: Any) -> None:
        """Show an operator that has ended to ``updates``."""
        try:
            if os.getpid() == self._pid and self._updates.is_on:
                self._forget_freed()
                with without_overrides():
                    self._updates.see(operator, results, arguments)
        except RecursionError:
            self._guard.lacked_room = True
        except BaseException as error:
            if not self._guard.absorbs(error):
                raise

    def see_error(self, error: BaseException) -> None:
        """Do nothing: memory errors are found otherwise."""

    def sees_inside(self, kinds: Iterable[type], arguments: Any) -> bool:
        """Return whether one of the classes is a wrapper, which runs operators of its own."""
        return any(map(is_wrapper, kinds))

    def see_resized(self, tensors: Iterable[object]) -> None:
        """Do nothing: the recorder sees the memory itself."""

    def _watch(self, tensor: Tensor) -> None:
        """Tell ``updates`` when a tensor is freed, because another one can get its address."""
        part = local_part(tensor)
        reference = KeyedReference(storage_of(part), self._ended.append)
        reference.key = storage_address(part)
        self._watched[reference.key] = reference

    def _forget_freed(self) -> None:
        for freed in other_threads.take_all(self._ended):
            if self._watched.get(freed.key) is freed:
                self._watched.pop(freed.key, None)
                self._updates.forget(freed.key)
