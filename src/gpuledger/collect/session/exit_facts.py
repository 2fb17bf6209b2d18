"""When and with which exception a recorded process ends, as far as the process itself knows."""

from __future__ import annotations

import sys
import time
from typing import Any

AT_EXIT, OF_BLOCK = "exit", "exception"
"""Reasons to end a recording: the process exits, or an exception leaves the recorded block."""


def exit_facts(reason: str) -> dict[str, Any]:
    """Return the facts of a process that ends its recording for ``reason``; empty if the program continues.

    An exception that nothing handled is the last one that Python printed. In an interactive session, that can be an
    earlier one, so it is left out.
    """
    if reason not in (AT_EXIT, OF_BLOCK):
        return {}
    printed = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    error = printed if reason == AT_EXIT else sys.exception()
    return {"exit_began_ns": time.time_ns(), "exit_error": None if error is None else type(error).__name__}
