"""A job that a child process does: an order goes in as JSON, an outcome comes back as JSON.

The parent calls :func:`run_child_job` with the name of a module, whose ``main`` calls :func:`serve_job`. Order and
outcome are files in a directory of their own, so that the child's streams stay free for what it runs. By hand,
``python -m MODULE`` without an order prints its outcome.

A child is ended when its parent dies. What it writes to stderr is kept for the error that says how it ended.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

from gpuledger import errors
from gpuledger.errors import GpuLedgerError
from gpuledger.files.scratch import block_directory
from gpuledger.processes.parent_death import dying_with

Job = Callable[[dict[str, Any], list[str]], dict[str, Any]]
"""Does a job: takes its order and arguments, returns its outcome."""

_ORDER, _OUTCOME, _STDERR, _STACKS = "order.json", "outcome.json", "stderr.txt", "stacks.txt"
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in ', re.MULTILINE)
_OTHERS = ("<", sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]))
"""Beginnings of the names of files that are Python's or gpuledger's own."""
_LAST_BYTES = 16_384
"""Of stderr, that are looked at for its last line."""
_place: list[Path] = []
"""Directory of the job that this process does."""


class ProgramTraceback(Exception):  # noqa: N818 - it is printed as the cause of an error
    """Traceback of the program, for ``gpuledger -v``."""


class ChildJobError(GpuLedgerError):
    """A child process ended without an outcome, or took too long.

    Attributes:
        status: How it ended, negative for a signal; None where it was stopped because its time was up.
        last_line: What it wrote to stderr last; ``""`` for nothing.
        place: Where its Python code was when a signal ended it, as FILE:LINE; ``""`` where that is not known.
    """

    def __init__(self, message: str, status: int | None, last_line: str = "", place: str = "") -> None:
        super().__init__(f"{message}: {last_line}" if last_line else message)
        self.status = status
        self.last_line = last_line
        self.place = place


def run_child_job(
    module: str,
    order: Mapping[str, Any],
    arguments: Sequence[str] = (),
    *,
    name: str,
    environment: Mapping[str, str] | None = None,
    output: TextIO | None = None,
    limit_s: float | None = None,
    runs_program: bool = False,
) -> dict[str, Any]:
    """Return the outcome of a job that a child process does.

    Args:
        module: The child's module; see :func:`serve_job`.
        order: What is to be done; plain values.
        arguments: Words for the child's command line.
        name: What the job is called in errors.
        environment: All of the child's environment; this process's own without it.
        output: Where the child's output goes; None drops stdout and keeps stderr for the error.
        limit_s: The longest it may take.
        runs_program: Whether the child runs a program of the user's. Python then puts the current directory first in
            ``sys.path``, as it does for the program.

    Raises:
        ChildJobError: the child ended without an outcome, or took too long.
        GpuLedgerError: what the job raised.
    """
    with block_directory("gpuledger-job-") as place, open(Path(place, _STDERR), "w+b") as kept:
        Path(place, _ORDER).write_text(json.dumps(dict(order)), encoding="utf-8")
        flags = [] if runs_program else ["-P"]  # -P: not the user's queue.py
        try:
            done = subprocess.run(
                [sys.executable, *flags, "-m", module, str(Path(place, _ORDER)), *arguments],
                env=environment,
                stdin=None if runs_program else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if output is None else output,
                stderr=kept if output is None else output,
                timeout=limit_s,
                check=False,
                preexec_fn=dying_with(os.getpid()),
            )
        except subprocess.TimeoutExpired as error:
            raise ChildJobError(
                f"{name}: stopped after the time limit of {limit_s:.0f} s", None, _last_line(kept)
            ) from error
        try:
            answer = json.loads(Path(place, _OUTCOME).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _early_end(name, done.returncode, Path(place, _STACKS), _last_line(kept)) from error
    if "error" in answer:
        traceback = answer["error"].get("traceback")
        raise _error_of(answer["error"]) from (ProgramTraceback(traceback) if traceback else None)
    outcome: dict[str, Any] = answer["outcome"]
    return outcome


def run_program_job(
    module: str, order: Mapping[str, Any], program: Sequence[str], output: TextIO | None
) -> dict[str, Any]:
    """Return the outcome of a job in which a program of the user's runs as ``__main__``.

    Args:
        module: The child's module.
        order: What is to be done; plain values.
        program: A script with its arguments, or ``-m``, a module and its arguments.
        output: Where the program's own output goes, as it comes; None drops it.

    Raises:
        ChildJobError: the process ended with the program.
        GpuLedgerError: what the job raised.
    """
    name = program[1] if program[0] == "-m" else program[0]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return run_child_job(module, order, program, name=name, environment=environment, output=output, runs_program=True)


def keep_stacks() -> None:
    """Have this child process leave for its parent where its Python code was, if a signal ends it."""
    if len(sys.argv) > 1:
        # The file is closed by the end of the process.
        faulthandler.enable(Path(sys.argv[1]).with_name(_STACKS).open("w"))


def job_directory() -> Path | None:
    """Return the directory for temporary files of this child's job, None by hand.

    The parent removes it, also if a signal ends it and with it this process.
    """
    return _place[0] if _place else None


def serve_job(job: Job, arguments: Sequence[str] | None = None) -> int:
    """Do the job that the command line orders, and leave its outcome for the parent; return the exit status.

    Args:
        job: Does it. A :class:`GpuLedgerError` that it raises is raised in the parent.
        arguments: The command line's words; those of this process without them. The first is the order's file. Where
            there is none, the order is empty and the outcome is printed.

    Ctrl-C ends this process without a traceback: it reaches the parent, too, which tells the user.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    order = Path(words[0]) if words else None
    _place.clear()
    _place.extend([] if order is None else [order.parent])
    given: dict[str, Any] = {} if order is None else json.loads(order.read_text(encoding="utf-8"))
    status = 0
    answer: dict[str, Any]
    try:
        answer = {"outcome": job(given, words[1:])}
    except GpuLedgerError as error:
        status = error.exit_code
        answer = {"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}
        if isinstance(error.__cause__, ProgramTraceback):
            answer["error"]["traceback"] = str(error.__cause__)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        raise  # the signal is blocked
    if order is not None:
        beside = order.with_name(f"{_OUTCOME}.new")
        beside.write_text(json.dumps(answer), encoding="utf-8")
        beside.rename(order.with_name(_OUTCOME))
    elif status:
        print(answer["error"]["message"], file=sys.stderr)
    else:
        print(json.dumps(answer["outcome"]))
    return status


def _early_end(name: str, status: int, stacks: Path, last_line: str) -> ChildJobError:
    """Return the error for a process without an outcome."""
    place = place_in(stacks.read_text(encoding="utf-8", errors="replace")) if stacks.is_file() else ""
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return ChildJobError(f"{place or name}: its process ended early, with {how}", status, last_line, place)


def place_in(stacks: str) -> str:
    """Return the innermost line outside libraries in what :mod:`faulthandler` wrote; ``""`` for none."""
    for found in _FRAME.finditer(stacks):  # the innermost frame first
        if "/site-packages/" not in found["file"] and not found["file"].startswith(_OTHERS):
            return f"{Path(found['file']).name}:{found['line']}"
    return ""


def _error_of(reply: Mapping[str, Any]) -> GpuLedgerError:
    """Return an error of the job's, of the same class where it is one of :mod:`gpuledger.errors`."""
    kind = getattr(errors, str(reply["kind"]), None)
    known = kind if isinstance(kind, type) and issubclass(kind, GpuLedgerError) else GpuLedgerError
    return known(reply["message"], hint=reply["hint"])


def _last_line(stream: IO[bytes]) -> str:
    """Return the last line that is not empty, ``""`` where there is none."""
    size_bytes = stream.seek(0, os.SEEK_END)
    stream.seek(max(size_bytes - _LAST_BYTES, 0))
    lines = stream.read().decode("utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
