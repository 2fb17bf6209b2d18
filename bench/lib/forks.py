"""Functions in forked processes, which have loaded what this one has and use the GPU for themselves."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any


def in_a_fork(run: Callable[[], dict[str, Any]], limit_s: int = 0) -> dict[str, Any]:
    """Return what ``run`` returns in a forked process; ``error`` and ``traceback`` if it raises or the process dies.

    Args:
        run: Its result has to be JSON.
        limit_s: Seconds after which the process is ended; 0 for no limit.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(limit_s)
        try:
            text = json.dumps(run())
        except BaseException as error:
            text = json.dumps({"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()})
        with os.fdopen(writing, "w") as file:
            file.write(text)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    if not text:
        return {"error": "the process died or took too long", "traceback": ""}
    found: dict[str, Any] = json.loads(text)
    return found
