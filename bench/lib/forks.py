"""Functions in forked processes, which have loaded what this one has and use the GPU for themselves.

A :class:`Fork` stays and answers requests, so that two of them can take turns.
"""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self


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


class Fork:
    """A forked process that answers requests until it is left.

    Args:
        begin: Runs in the process, and returns the function that answers. Requests and answers are JSON.
    """

    def __init__(self, begin: Callable[[], Callable[[Any], Any]]) -> None:
        own_reading, writing = os.pipe()
        reading, own_writing = os.pipe()
        self._child = os.fork()
        if not self._child:
            for other in (writing, reading):
                os.close(other)
            _answer_all(begin, own_reading, own_writing)
        for other in (own_reading, own_writing):
            os.close(other)
        self._requests, self._answers = os.fdopen(writing, "w"), os.fdopen(reading)

    def ask(self, request: Any) -> Any:
        """Return the answer to a request.

        Raises:
            RuntimeError: The process raised an exception or died.
        """
        with suppress(BrokenPipeError):  # the answer says why it died, if it could say so
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
        text = self._answers.readline()
        found = json.loads(text) if text else {"error": "the process died"}
        if "error" in found:
            raise RuntimeError(found["error"])
        return found["answer"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self._requests.close()
        self._answers.close()
        os.waitpid(self._child, 0)


def _answer_all(begin: Callable[[], Callable[[Any], Any]], reading: int, writing: int) -> None:
    """Answer requests until there are no more, and end this process."""
    with os.fdopen(reading) as requests, os.fdopen(writing, "w") as answers:
        try:
            answer = begin()
            for line in requests:
                answers.write(json.dumps({"answer": answer(json.loads(line))}) + "\n")
                answers.flush()
        except BaseException as error:
            answers.write(json.dumps({"error": f"{type(error).__name__}: {error}\n{traceback.format_exc()}"}) + "\n")
    os._exit(0)
