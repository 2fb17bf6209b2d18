"""The dispatch mode through which the dispatch recorder sees operators, and how it leaves the program."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, Protocol

from torch import ops

from gpuledger.collect.adapter import dispatch_modes, torch_private
from gpuledger.collect.adapter.dispatch_modes import CompilerNeutralMode, may_take_out_mode
from gpuledger.collect.adapter.guard import Guard, forget_own_frames
from gpuledger.collect.attribution.main_thread import call_soon
from gpuledger.collect.memory.operator_times import OperatorTimes

_LEAVES_STORAGE = frozenset(getattr(ops.aten.set_, name) for name in ops.aten.set_.overloads())
"""Operators that give a tensor another storage. FSDP1 frees the old one before, without an operator."""


class SeesOperators(Protocol):
    """What records operators.

    Attributes:
        times: Measures their time; None if that is not measured.
    """

    times: OperatorTimes | None

    def see(self, operator: Any, results: Any, arguments: Any) -> None:
        """Record an operator that has ended."""

    def see_error(self, error: BaseException) -> None:
        """Record that an operator has raised an exception, which the program gets."""

    def sees_inside(self, kinds: Iterable[type], arguments: Any) -> bool:
        """Return whether a class of the arguments runs operators of its own, which are seen then."""

    def see_resized(self, tensors: Iterable[object]) -> None:
        """Record storages that were resized without an operator."""


class OperatorMode(CompilerNeutralMode):
    """Sees every operator of the thread that enters it.

    Args:
        recorder: Records the operators.
        guard: Handles exceptions raised in gpuledger's code.
    """

    def __init__(self, recorder: SeesOperators, guard: Guard) -> None:
        super().__init__()
        self._recorder: SeesOperators | None = recorder
        self._guard = guard
        self._thread = threading.get_ident()
        self.has_left = False
        self._leave_guarded = guard(self._leave)
        self._until_next_try = self._delay = 0

    @property
    def thread_id(self) -> int:
        """Return the id of the thread that has entered the mode."""
        return self._thread

    def retire(self) -> None:
        """Become a no-op, whether the mode could be removed or not."""
        self._recorder = None
        self._until_next_try = 0

    def come_back(self, recorder: SeesOperators) -> None:
        """Record again. The mode was retired and is still in place."""
        self.retire()
        self._recorder = recorder

    def take_out(self, *, anyway: bool = False) -> bool:
        """Remove the mode. Return False if that is not possible now.

        Args:
            anyway: Whether a mode is gone that handles an operator, because it was removed before.
        """
        return self._may_go() and (dispatch_modes.take_out_dispatch_mode(self) or anyway)

    def _may_go(self) -> bool:
        is_at_rest = threading.get_ident() == self._thread and not torch_private.is_in_backward()
        return is_at_rest and may_take_out_mode(self._guard.absorbs)

    def leave_soon(self) -> None:
        """Become a no-op, and be removed between two operators of the program. Later, if that is not possible yet.

        A no-op makes the smallest operators three times slower, and a program without modules calls nothing else that
        is observed.
        """
        self.retire()
        self._delay = 1
        call_soon(self._leave_guarded)

    def _leave(self) -> None:
        if self._recorder is not None or self.has_left or threading.get_ident() != self._thread:
            return
        if dispatch_modes.is_handling_operator(self):
            call_soon(self._leave_guarded)
            return
        self.has_left = self.take_out()
        if not self.has_left:  # in backward, or in a compiled function
            self._until_next_try = self._delay = 2 * self._delay

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            if types and self._recorder is not None and self._recorder.sees_inside(types, args):
                return NotImplemented  # the wrapper's own function is next, and its operators come here
            if func in _LEAVES_STORAGE and self._recorder is not None:
                self._recorder.see_resized(args[:1])
            times = None if self._recorder is None else self._recorder.times
            started_ns = 0 if times is None else time.time_ns()
            result = func(*args, **(kwargs or {}))
            ended_ns = 0 if times is None else time.time_ns()
            if self._recorder is not None:
                try:
                    if times is not None:
                        times.add(func, started_ns, ended_ns, sys._getframe().f_back)
                    if self._recorder is not None:  # an error of gpuledger's has not ended the recording just now
                        self._recorder.see(func, result, args)
                except RecursionError:  # no room for the call at the recursion limit
                    self._guard.lacked_room = True
            elif self._until_next_try:
                self._until_next_try -= 1
                if not self._until_next_try:
                    call_soon(self._leave_guarded)
        except BaseException as error:
            try:
                if self._recorder is not None:
                    self._recorder.see_error(error)
            except RecursionError:
                self._guard.lacked_room = True
            forget_own_frames(error)
            raise
        return result
