"""Standard streams that were closed before the command began, as by ``>&-``."""

from __future__ import annotations

import os
import sys


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
