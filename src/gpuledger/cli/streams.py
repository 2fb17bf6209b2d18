"""Standard streams that were closed before the command began, as by ``>&-``, and pipes that nobody reads any more."""

from __future__ import annotations

import os
import select
import signal
import sys

READER_GONE = 128 + signal.SIGPIPE
"""The status that a shell has for a command that SIGPIPE ended, such as ``cat`` before ``head``."""


def open_closed_streams() -> None:
    """Put ``/dev/null`` where stdin, stdout or stderr is closed, so that no file of ours takes its number.

    A program that the command starts gets it closed, as it would without us.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for as long as the process lives
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def leave_closed_pipes() -> bool:
    """Return whether stdout or stderr is a pipe that nobody reads. What is still to be written there is discarded."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    gone = [number for number, events in poll.poll(0) if events & (select.POLLERR | select.POLLHUP)]
    for number in gone:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
    return bool(gone)
