"""Dispatch modes of the threads in which the recorder was not opened.

A dispatch mode belongs to the thread that enters it. A training can run in another one, as the workers of a Ray actor
or the handlers of a server do. Such a thread gets a mode of its own when it first calls a module or an optimizer while
recording. It keeps the mode until the recording ends: operators between its module calls are recorded too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from gpuledger.collect.adapter import dispatch_modes, torch_private
from gpuledger.collect.adapter.dispatch_modes import may_enter_mode
from gpuledger.collect.adapter.frames import frames_by_thread
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.memory.dispatch_mode import OperatorMode, SeesOperators


class ThreadMode(OperatorMode):
    """The mode of one such thread. It does not use the flags that torch's modes share among all threads."""

    def begin(self) -> None:
        """Begin to see the operators of the calling thread, which must be the one that made this mode."""
        dispatch_modes.push_dispatch_mode(self)

    def take_out(self, *, anyway: bool = False) -> bool:
        """Remove the mode. Return False if that is not possible now."""
        return self._may_go() and dispatch_modes.take_out_pushed_mode(self)


class _Holder:
    """Holds the mode of one thread. Python deletes it in that thread when the thread ends."""

    _on_end: Callable[[ThreadMode], None] | None = None
    """None if the initialization failed: Python deletes such an object as well."""

    def __init__(self, mode: ThreadMode, on_end: Callable[[ThreadMode], None]) -> None:
        self.mode = mode
        self._on_end = on_end

    def __del__(self) -> None:
        if self._on_end is not None and not sys.is_finalizing():
            self._on_end(self.mode)


class _OfThread(threading.local):
    holder: _Holder | None = None


class ThreadModes:
    """The modes of all threads except the one in which the recorder was opened.

    Args:
        recorder: Records the operators.
        guard: Handles exceptions raised in gpuledger's code.
    """

    def __init__(self, recorder: SeesOperators, guard: Guard) -> None:
        self._recorder = recorder
        self._guard = guard
        self._of_thread = _OfThread()
        self._modes: set[ThreadMode] = set()
        self._on_end = guard.for_good(self._thread_ended)

    def is_here(self) -> bool:
        """Return whether the calling thread has a mode."""
        return self._of_thread.holder is not None

    def enter(self) -> bool:
        """Give the calling thread a mode if it has none. Return whether the operators of this thread are recorded."""
        holder = self._of_thread.holder
        if holder is not None:
            dispatch_modes.send_to_python(holder.mode)
            return True
        if torch_private.is_in_backward():  # autograd gives its threads the modes of the caller
            return dispatch_modes.has_dispatch_mode()
        if dispatch_modes.has_dispatch_mode() or torch_private.is_profiling() or dispatch_modes.is_in_transform():
            return False
        if not may_enter_mode():
            return False
        mode = ThreadMode(self._recorder, self._guard)
        holder = _Holder(mode, self._on_end)
        self._modes.add(mode)
        self._of_thread.holder = holder
        mode.begin()
        return True

    def retire(self) -> None:
        """Record no more operators of these threads."""
        for mode in tuple(self._modes):
            mode.retire()

    def come_back(self) -> None:
        """Record the operators of these threads again."""
        for mode in tuple(self._modes):
            mode.come_back(self._recorder)

    def take_out(self) -> bool:
        """Remove the calling thread's mode. Return whether no thread has one, as far as threads have not ended."""
        holder = self._of_thread.holder
        if holder is not None and holder.mode.take_out():
            self._modes.discard(holder.mode)
            self._of_thread.holder = None
        if self._modes:
            running = {threading.get_ident(), *frames_by_thread()}
            self._modes.difference_update([mode for mode in tuple(self._modes) if mode.thread_id not in running])
        return not self._modes

    def _thread_ended(self, mode: ThreadMode) -> None:
        self._modes.discard(mode)
        mode.retire()
        mode.take_out()
