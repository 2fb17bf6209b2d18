"""Inspect the frames of other threads while none of them can run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from torch.autograd import graph

_section = threading.Lock()
_LONG_S = 10.0
"""Thread switch interval during the inspection; longer than any of it takes."""


@contextmanager
def undisturbed() -> Iterator[bool]:
    """Keep other threads from running inside the block, provided that nothing in it blocks.

    Yields:
        True if no other thread runs. False if another thread is already inside this context.
    """
    if threading.active_count() == 1:
        yield True
        return
    with ExitStack() as undo:  # each cleanup is registered before its action, so an error leaves nothing changed
        # Never block on this lock: a fork can copy it in the locked state.
        nobody_else = _section.acquire(blocking=False) and bool(undo.callback(_section.release))
        if nobody_else:
            undo.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(_LONG_S)
            time.sleep(0)  # let a thread that has already requested the GIL run first
        yield nobody_else


def frames_of_others() -> Iterator[FrameType]:
    """Yield all frames of all other threads.

    Removes this thread's frame first. That frame is this generator's own: a variable that refers to it is a reference
    cycle, which from Python 3.12 on keeps all callers and their tensors alive until the next garbage collection.
    """
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    for innermost in frames.values():
        frame: FrameType | None = innermost
        while frame is not None:
            yield frame
            frame = frame.f_back


def others_run_backward() -> bool:
    """Return whether another thread is in a backward pass, in which autograd writes gradients without the GIL."""
    running: Callable[..., object] = graph._engine_run_backward
    return threading.active_count() > 1 and any(frame.f_code is running.__code__ for frame in frames_of_others())
