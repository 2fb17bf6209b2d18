"""Frames of the program's functions that are running, and their variables, read without a change to them."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from operator import call
from types import CoroutineType, FrameType
from typing import Any

import torch

import gpuledger

OUTSIDE = tuple(
    os.path.dirname(os.path.abspath(place.__file__)) + os.sep for place in (gpuledger, torch) if place.__file__
)
"""Folders of gpuledger and of torch."""

TEST_RUNNERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("_pytest", "pluggy"))
"""Folders of pytest. What called a test is no part of the program: its variables lead to thousands of objects."""

_HANDS_OUT_PROXIES = sys.version_info >= (3, 13)
"""Whether ``f_locals`` of a function is a new object each time, and not a dict that its frame keeps (PEP 667)."""
_USES_THE_DICT = frozenset({"locals", "vars", "exec", "f_locals"})
"""Names in a function that may use the dict that its frame keeps."""
_OWN_REFERENCES = 3
"""References to that dict if nobody else uses it: of its frame, of our variable, and of the call that counts them."""


_RESTORE = {True: gc.enable, False: gc.disable}


class Uncollected:
    """Calls a function written in C while no garbage is collected: ``list(Uncollected(function).steps)[RESULT]``.

    ``sys._current_frames`` needs this. Before Python 3.11.9 and 3.12.3 it allocates while it has a lock that the start
    of a thread needs. If garbage is collected in that moment, a finalizer can let another thread run. If that one
    starts a thread, the program hangs.

    The steps run in one call of C code, so that no other thread sees the difference. They run in the caller's frame,
    which is one of those that are looked at.

    Args:
        function: The function.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._was: list[bool] = []
        """Has one element from when collection is known to be on or off until it is so again."""
        before = map(self._was.append, map(call, (gc.isenabled,)))
        after = map(call, chain(map(_RESTORE.__getitem__, self._was), (self._was.clear,)))
        self.steps = chain(before, map(call, (gc.disable, function)), after)

    def restore(self) -> None:
        """Switch collection on again, if the function has raised."""
        if self._was and self._was[0]:
            gc.enable()


RESULT = 2
"""Number of the step that returns the function's result."""


def frames_by_thread() -> dict[int, FrameType]:
    """Return the innermost frame of each other thread, by its id.

    A variable that refers to this thread's own frame would be a reference cycle, which from Python 3.12 on keeps all
    callers and their tensors alive until the next garbage collection.
    """
    looking = Uncollected(sys._current_frames)
    try:
        frames: dict[int, FrameType] = list(looking.steps)[RESULT]
    except BaseException:
        looking.restore()
        raise
    frames.pop(threading.get_ident(), None)
    return frames


def frame_of_backward() -> FrameType | None:
    """Return the frame of the one other thread that waits for a backward pass; None if there is none, or several.

    On a GPU, a thread of autograd's own runs the operators. The thread that called ``backward()`` waits for it.
    """
    engine = torch.autograd.graph._engine_run_backward.__code__
    waiting = [frame for frame in frames_by_thread().values() if frame.f_code is engine]
    return waiting[0] if len(waiting) == 1 else None


def stack_ns() -> float:
    """Return about how long the allocator needs for the Python stack of an allocation, in ns.

    Source: three times the shortest time of a stack from here. Those in a model are longer, and are freed again.
    """
    times = []
    for _ in range(5):
        started_ns = time.perf_counter_ns()
        torch._C._profiler.gather_traceback(python=True, script=True, cpp=False)
        times.append(time.perf_counter_ns() - started_ns)
    return max(3.0 * min(times), 1_500.0)


def program_frames() -> Iterator[FrameType]:
    """Yield the frames of the program's functions that are running in this thread, innermost first."""
    yield from _of_the_program(sys._getframe(1))


def frames_of_other_threads() -> Iterator[FrameType]:
    """Yield the frames of the program's functions that are running in its other threads, as far as Python started them.

    Only functions of the program itself, in the thread's outermost frames.
    """
    known = {thread.ident for thread in threading.enumerate()}
    for ident, frame in frames_by_thread().items():
        if ident in known:
            yield from _of_the_program(frame)


def frames_of_waiting_tasks() -> list[FrameType]:
    """Return the frames of the program's coroutines that wait in tasks of this thread's event loop, outermost first.

    Those of different tasks are in no order.
    """
    asyncio: Any = sys.modules.get("asyncio")
    if getattr(asyncio, "_get_running_loop", lambda: None)() is None:
        return []
    found: list[FrameType] = []
    for task in asyncio.all_tasks():
        coroutine = asyncio.Task.get_coro(task) if issubclass(type(task), asyncio.Task) else None
        while type(coroutine) is CoroutineType and coroutine.cr_frame is not None and not coroutine.cr_running:
            found += [frame for frame in _of_the_program(coroutine.cr_frame) if frame is coroutine.cr_frame]
            coroutine = coroutine.cr_await
    return found


def _of_the_program(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield what runs of the program from a frame outwards; of a test, no more than the test itself."""
    while frame is not None:
        file = frame.f_code.co_filename
        if any(folder in file for folder in TEST_RUNNERS):
            return
        if not file.startswith(OUTSIDE) and not file.startswith("<frozen"):
            yield frame
        frame = frame.f_back


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return a copy of a frame's variables; empty for a function that may use the dict of its variables itself.

    Before Python 3.13, a function's frame keeps one dict for ``locals()`` and for us. It is refreshed whenever it is
    handed out, and would keep all values: so it is emptied again, unless somebody else has it.
    """
    is_function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    if is_function and not _HANDS_OUT_PROXIES and _uses_the_dict(frame):
        return {}
    handed_out = frame.f_locals
    copied = dict(handed_out)
    if is_function and type(handed_out) is dict and sys.getrefcount(handed_out) <= _OWN_REFERENCES:
        handed_out.clear()
    return copied


def _uses_the_dict(frame: FrameType) -> bool:
    """Return whether a function may use the dict of its variables. A debugger writes it back into the frame."""
    return sys.gettrace() is not None or not _USES_THE_DICT.isdisjoint(frame.f_code.co_names)
