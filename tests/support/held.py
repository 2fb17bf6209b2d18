"""Whether a thread is held at a module call while a profile of all threads starts or stops."""

from __future__ import annotations

import sys
import threading

from gpuledger.collect.passes.held_threads import HeldThreads


def is_held(thread: threading.Thread) -> bool:
    """Return whether a thread waits at a module call."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code is not HeldThreads._hold.__code__:
        frame = frame.f_back
    return frame is not None
