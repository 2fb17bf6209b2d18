"""Exceptions that interrupt code at a chosen place, as a program's signal handler does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class DeadlineError(Exception):
    """What a signal handler of a program raises."""


@contextmanager
def interrupted(at: int) -> Iterator[Callable[[], int]]:
    """Raise at one of the events of Python's profiling interface. Yield a function that returns their number.

    An event is where a function begins or returns. Python runs signal handlers there, too.
    """
    seen = 0

    def see(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == at:
            raise DeadlineError(event)

    sys.setprofile(see)
    try:
        yield lambda: seen
    finally:
        sys.setprofile(None)
