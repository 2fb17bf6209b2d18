"""Say which captures of CUDA graphs have failed. The program can go on without the graph."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

import gpuledger

MOST = 3
"""Maximum number of failures that are noted."""

FAILED = "The capture of a CUDA graph failed{where}: {error}. It has no replays and no memory of its own in this run."
MORE = "Further captures of CUDA graphs failed."

_OUTSIDE = tuple(os.path.dirname(str(place.__file__)) + os.sep for place in (gpuledger, torch))
_LINKED = 8
"""Number of exceptions that are looked at."""


class FailedCaptures:
    """Notes captures that failed, each reason once.

    Args:
        note: Adds a note to the run.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._noted: set[str] = set()

    def failed(self) -> None:
        """Note the error that is being raised by the beginning or the end of a capture."""
        error = sys.exception()
        if error is None or len(self._noted) > MOST:
            return
        first = _first(error)
        text = FAILED.format(where=_where(first), error=_words_of(first))
        if text not in self._noted:
            self._noted.add(text)
            self._note(text if len(self._noted) <= MOST else MORE)


def _first(error: BaseException) -> BaseException:
    """Return the error inside the capture, because of which its end raised another one."""
    for _ in range(_LINKED):
        before = error.__cause__ or error.__context__
        if before is None:
            break
        error = before
    return error


def _words_of(error: BaseException) -> str:
    """Return the class and the first line of an error, without calling its methods."""
    arguments = BaseException.args.__get__(error)  # type: ignore[attr-defined]
    lines = " ".join(text for text in arguments if type(text) is str).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def _where(error: BaseException) -> str:
    """Return the program's innermost line in the error's traceback, else that of the running function; "" for none."""
    found, entry = "", error.__traceback__
    while entry is not None:
        if _is_the_programs(entry.tb_frame):
            found = f" in {Path(entry.tb_frame.f_code.co_filename).name}:{entry.tb_lineno}"
        entry = entry.tb_next
    frame = None if found else sys._getframe()
    while frame is not None and not found:
        if _is_the_programs(frame):
            found = f" in {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return found


def _is_the_programs(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith((*_OUTSIDE, "<"))
