"""Run functions in forks of a process, which have loaded what that process has."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from gpuledger.errors import GpuLedgerError, InputError
from gpuledger.processes.child_job import place_in
from gpuledger.simulate.estimate.failures import CRASHED_HINT


def run_forked(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what ``run`` returns in a fork.

    Args:
        run: Its result has to be JSON.

    Raises:
        InputError: ``run`` raised an error of gpuledger, or the process ended without a result. Its message then has
            the line of the program, if a signal ended it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    with tempfile.TemporaryFile("w+") as stacks:
        child = os.fork()
        if not child:
            os.close(reading)
            # Where it is enabled already, it would not take back a signal whose handler others have replaced since.
            faulthandler.disable()
            faulthandler.enable(stacks)
            _answer(run, writing)
        os.close(writing)
        with os.fdopen(reading) as file:
            text = file.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        stacks.seek(0)
        place = place_in(stacks.read())
    if not text:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        hint = CRASHED_HINT if place else ""
        raise InputError(f"{place or 'the program'}: its process ended early, with {how}", hint=hint)
    answer: dict[str, Any] = json.loads(text)
    if "error" in answer:
        raise InputError(answer["error"], hint=answer["hint"])
    return answer


class Spare:
    """A fork of this process from before a program ran, which runs a function again on request.

    It is not a child of this process, so that the program has no child that it did not start. It ends with this one.

    Args:
        run: Takes what is asked and returns its result, both as JSON. Each call is in a fork of its own, and what it
            writes is dropped.
    """

    def __init__(self, run: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        asked, self._ask = os.pipe()
        self._answers, answering = os.pipe()
        child = os.fork()
        if not child:
            if os.fork():
                os._exit(0)
            os.close(self._ask)
            os.close(self._answers)
            _serve(run, asked, answering)
        os.waitpid(child, 0)
        os.close(asked)
        os.close(answering)

    def run(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the result for what is asked; an empty one if it failed, or if the process was killed."""
        try:
            os.write(self._ask, (json.dumps(asked) + "\n").encode())
        except BrokenPipeError:
            return {}
        with os.fdopen(os.dup(self._answers)) as file:
            return json.loads(file.readline() or "{}")  # type: ignore[no-any-return]

    def end(self) -> None:
        """End the process."""
        os.close(self._ask)
        os.close(self._answers)


def _serve(run: Callable[[dict[str, Any]], dict[str, Any]], asked: int, answering: int) -> None:
    """Answer until the other process closes its end, and end this process.

    Ctrl-C reaches all processes of a terminal. This one ignores it, and ends with the other one or goes on with it.
    What runs on request has the handler of before.
    """
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run_one(line: str) -> dict[str, Any]:
        signal.signal(signal.SIGINT, handler)
        return run(json.loads(line))

    try:
        with os.fdopen(asked) as requests, os.fdopen(answering, "w") as answers, no_output():
            for line in requests:
                try:
                    answer = run_forked(partial(run_one, line))
                except InputError:
                    answer = {}
                answers.write(json.dumps(answer) + "\n")
                answers.flush()
    finally:
        os._exit(0)  # an error here has no reader: the other process has ended


@contextmanager
def no_output() -> Iterator[None]:
    """Drop what the program writes."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
        for number in (*kept, nowhere):
            os.close(number)


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
