"""End the simulation of a program from another thread than the main one.

That thread can take the last step that is needed. Or it can fail, and the main thread waits forever for what that
thread was to compute.
"""

from __future__ import annotations

import signal
import sysconfig
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Any

from gpuledger.collect.adapter.frames import frames_by_thread
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.rest.ending import OWN_SIGNAL, StepsDone

WAITS_S = 8.0
"""Time without progress of the main thread and without work of other threads, after which the program waits forever."""
_LOOK_S, _BUSY_FRAC = 0.5, 0.2
_IDLE_S = 2.0
"""Time without work of other threads after which a program is not waited for, as it may serve requests forever."""
_STDLIB = sysconfig.get_path("stdlib") + "/"
_WAITING = ("threading.py", "queue.py", "selectors.py", "concurrent/futures/_base.py", "socket.py")
"""Files of the standard library in which a thread waits for another one."""
_POOL = "concurrent/futures/thread.py"
"""File with the innermost frame of a pool's thread that waits for work."""


class ThreadFailedError(BaseException):
    """Raised in the main thread, because another thread has failed or was the last. No handler of errors catches it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class FailedThreads:
    """Notices errors of the program's other threads, and raises the first one where the main thread waits forever."""

    def __init__(self) -> None:
        self._main = threading.main_thread()
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def install(self, patches: Patches) -> None:
        """Notice errors that end a thread, and those of work that was given to one."""
        plain_hook, plain_set = threading.excepthook, Future.set_exception

        def hook(arguments: Any) -> None:
            self._failed(arguments.exc_value)
            if not isinstance(arguments.exc_value, StepsDone):
                plain_hook(arguments)

        def set_exception(future: Any, error: BaseException | None) -> None:
            self._failed(error)
            plain_set(future, error)

        patches.put(threading, "excepthook", hook)
        patches.put(Future, "set_exception", set_exception)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise in the main thread inside the block. Does nothing in another thread, which gets no signals."""
        if threading.current_thread() is not self._main:
            yield
            return
        before = signal.signal(OWN_SIGNAL, self._raise)
        try:
            yield
        finally:
            self._is_over.set()
            signal.signal(OWN_SIGNAL, before)

    def wait_for_others(self) -> None:
        """Wait for the other threads of a program that has ended, as Python does, while any of them works."""
        since_s, used_s = time.monotonic(), time.process_time()
        while (others := list(_awaited())) and time.monotonic() - since_s < _IDLE_S:
            others[0].join(_LOOK_S)
            if time.process_time() - used_s > _BUSY_FRAC * (time.monotonic() - since_s):
                since_s, used_s = time.monotonic(), time.process_time()

    def _failed(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, SystemExit) or threading.current_thread() is self._main:
            return
        with self._lock:
            is_done, is_first = isinstance(error, StepsDone), self._error is None
            if is_done or is_first:
                self._error = error
        if is_done and not self._is_over.is_set():
            signal.pthread_kill(self._main.ident or 0, OWN_SIGNAL)
        elif is_first:
            threading.Thread(target=self._watch, daemon=True, name="gpuledger").start()

    def _raise(self, _number: int, _frame: FrameType | None) -> None:
        if self._error is not None and not self._is_over.is_set():
            raise ThreadFailedError(self._error)

    def _watch(self) -> None:
        """Look at the main thread until the simulation is over. What it does to end can wait for threads, too."""
        allowed_s = WAITS_S
        while self._waits_for(allowed_s):
            signal.pthread_kill(self._main.ident or 0, OWN_SIGNAL)
            allowed_s = 2 * _LOOK_S

    def _waits_for(self, allowed_s: float) -> bool:
        """Return True when the program has done nothing for some time, and False when the simulation is over."""
        since_s, used_s, place = time.monotonic(), time.process_time(), _place_of(self._main)
        while not self._is_over.wait(_LOOK_S):
            now_s, here = time.monotonic(), _place_of(self._main)
            is_busy = time.process_time() - used_s > _BUSY_FRAC * (now_s - since_s)
            if here is None or here != place or is_busy:
                since_s, used_s, place = now_s, time.process_time(), here
            elif now_s - since_s >= allowed_s:
                return True
        return False


def _awaited() -> Iterator[threading.Thread]:
    """Yield the threads that Python waits for before it ends. Those of pools that have no work end then."""
    frames = frames_by_thread()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        is_of_pool = frame is not None and frame.f_code.co_filename.endswith(_POOL)
        if thread is not threading.main_thread() and not thread.daemon and not is_of_pool:
            yield thread


def _place_of(thread: threading.Thread) -> tuple[int, int] | None:
    """Return the innermost frame of a thread and where it is; None if it does not wait for another thread."""
    frame = frames_by_thread().get(thread.ident or 0)
    if frame is None or not frame.f_code.co_filename.startswith(_STDLIB):
        return None
    return (id(frame), frame.f_lasti) if frame.f_code.co_filename.endswith(_WAITING) else None


def failure_of(error: BaseException) -> BaseException:
    """Return the error of the thread that failed, else the error itself."""
    return error.error if isinstance(error, ThreadFailedError) else error
