"""Exceptions that interrupt code at a chosen place, as a program's signal handler does."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import CO_GENERATOR
from types import FrameType
from typing import Any


class DeadlineError(Exception):
    """What a signal handler of a program raises."""


@contextmanager
def interrupted(at: int, *, as_signals: bool = False) -> Iterator[Callable[[], int]]:
    """Raise at one of the events of Python's profiling interface. Yield a function that returns their number.

    An event is where a function begins or returns. Python runs signal handlers there, too, except before a function
    written in C begins and where a generator yields. ``as_signals`` leaves these out.

    The garbage collector waits: Python discards what is raised in its callbacks, of which Hypothesis has one.
    """
    seen = 0

    def see(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal seen
        if as_signals and (event == "c_call" or (event == "return" and frame.f_code.co_flags & CO_GENERATOR)):
            return
        seen += 1
        if seen == at:
            raise DeadlineError(event)

    gc.disable()
    sys.setprofile(see)
    try:
        yield lambda: seen
    finally:
        try:
            sys.setprofile(None)  # an event, too
        finally:  # where ``with`` itself is interrupted, this runs later: perhaps inside the next one
            gc.enable()
