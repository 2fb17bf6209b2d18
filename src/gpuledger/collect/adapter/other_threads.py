"""What other threads of the program are doing, seen while none of them can go on."""

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
"""Longer than anything takes that is done while no other thread runs."""


@contextmanager
def undisturbed() -> Iterator[bool]:
    """Have no other thread run meanwhile, as long as nothing inside waits.

    Yields:
        Whether none runs; False where another thread is in here already.
    """
    if threading.active_count() == 1:
        yield True
        return
    with ExitStack() as undo:  # what is undone is registered before or where it is done, so an error leaves nothing
        # Never waited for: it may have been held where a process was forked.
        nobody_else = _section.acquire(blocking=False) and bool(undo.callback(_section.release))
        if nobody_else:
            undo.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(_LONG_S)
            time.sleep(0)  # for a thread that has asked for its turn already
        yield nobody_else


def frames_of_others() -> Iterator[FrameType]:
    """Yield all frames of all other threads."""
    here = threading.get_ident()
    for thread, innermost in sys._current_frames().items():
        frame: FrameType | None = innermost if thread != here else None
        while frame is not None:
            yield frame
            frame = frame.f_back


def others_run_backward() -> bool:
    """Return whether another thread is in a backward pass, where autograd writes gradients without Python's lock."""
    running: Callable[..., object] = graph._engine_run_backward
    return threading.active_count() > 1 and any(frame.f_code is running.__code__ for frame in frames_of_others())
