"""Run a function in a fork of this process, which has loaded what this one has."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from gpuledger.errors import GpuLedgerError, InputError


def run_forked(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what ``run`` returns in a fork.

    Args:
        run: Its result has to be JSON.

    Raises:
        InputError: ``run`` raised an error of gpuledger, or the process ended without a result.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _answer(run, writing)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    if not text:
        raise InputError(f"the program's process ended early, with status {os.waitstatus_to_exitcode(status)}")
    answer: dict[str, Any] = json.loads(text)
    if "error" in answer:
        raise InputError(answer["error"], hint=answer["hint"])
    return answer


def _answer(run: Callable[[], dict[str, Any]], writing: int) -> None:
    """Write the result of ``run`` and end this process."""
    status = 1
    try:
        try:
            text = json.dumps(run())
        except GpuLedgerError as error:
            text = json.dumps({"error": error.message, "hint": error.hint})
        except BaseException:
            traceback.print_exc()
            raise
        with os.fdopen(writing, "w") as file:
            file.write(text)
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
