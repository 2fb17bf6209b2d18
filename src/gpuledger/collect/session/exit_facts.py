"""When and with which exception a recorded process ends, as far as the process itself knows."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from gpuledger.model.run_directory import rank_directories

AT_EXIT, OF_BLOCK = "exit", "exception"
"""Reasons to end a recording: the process exits, or an exception leaves the recorded block."""

_LOST_PEER = (
    "gloo/transport/",
    "ncclRemoteError",
    "Connection closed by",
    "Connection reset by",
    "got 0 bytes",
    "wait timeout after",
)
"""What messages of torch.distributed contain if another rank has closed the connection, or does not answer."""
_MOST_CAUSES = 8
_OF_TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Environment variable of the processes that torchrun starts."""
_RAYLET = "RAY_RAYLET_PID"
"""Environment variable of Ray's workers: the process that starts and ends them."""

AT_THE_LIMIT = "Some modules, tensors or steps were not recorded: the program had reached Python's recursion limit."


def exit_facts(reason: str) -> dict[str, Any]:
    """Return the facts of a process that ends its recording for ``reason``; empty if the program continues.

    An exception that nothing handled is the last one that Python printed. In an interactive session, that can be an
    earlier one, so it is left out.
    """
    if reason not in (AT_EXIT, OF_BLOCK):
        return {}
    error = _error_at(reason)
    return {
        "exit_began_ns": time.time_ns(),
        "exit_error": None if error is None else type(error).__name__,
        "exit_lost_peer": _has_lost_peer(error),
    }


def is_ended_by_parent() -> bool:
    """Return whether the process that started this one kills it when its work is done.

    Ray ends a worker with exit status 1 and without Python's exit, whether its work has failed or not.
    """
    return os.environ.get(_RAYLET) == str(os.getppid())


def has_failed(reason: str) -> bool:
    """Return whether a process that ends its recording for ``reason`` ends with an exception."""
    return reason in (AT_EXIT, OF_BLOCK) and _error_at(reason) is not None


def can_stand_by(run_directory: Path, reason: str) -> bool:
    """Return whether a process that has recorded nothing can have stood by while others of the run recorded.

    One that torchrun has started and that ends with an exception is a rank that has failed. torchrun's own process is
    none, and ends with an exception, too, if one of its ranks fails.
    """
    return bool(rank_directories(run_directory)) and not (_OF_TORCHRUN in os.environ and has_failed(reason))


def _error_at(reason: str) -> BaseException | None:
    printed = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    return printed if reason == AT_EXIT else sys.exception()


def _has_lost_peer(error: BaseException | None) -> bool:
    """Return whether an exception, or the one that it comes from, tells of another rank that has gone.

    Only the messages of PyTorch's own types are read: ``__str__`` of another one is the program's code.
    """
    for _ in range(_MOST_CAUSES):
        if error is None:
            return False
        kind = type(error)
        text = error.args[0] if error.args and (kind is RuntimeError or kind.__module__ == "torch.distributed") else ""
        if type(text) is str and any(words in text for words in _LOST_PEER):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False
