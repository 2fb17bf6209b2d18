"""A command that a signal ends removes its temporary files first."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end Python at once. Ctrl-C does not: it raises KeyboardInterrupt, and files are removed after that."""


def remove_files_when_ended() -> None:
    """Have each of these signals remove the temporary files of this process before it ends it, unless it is ignored."""
    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    """Remove this process's temporary directories, and end it as the signal does by default."""
    scratch = sys.modules.get("gpuledger.files.scratch")  # not imported: there are none
    if scratch is not None:
        scratch.remove_all()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
