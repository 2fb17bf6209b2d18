"""The parent: starts the program as a child, passes signals on, waits, and keeps the run's manifest.

The child is what the user would have started, with two more variables in its environment. Whatever happens to it, the
parent lives on to close the books.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from gpuledger._version import __version__
from gpuledger.collect.bootstrap import bootstrap_directory
from gpuledger.collect.redact import redact
from gpuledger.model.run import read_json, write_json
from gpuledger.model.tables import SCHEMA_VERSION

_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")


@dataclass(frozen=True)
class Order:
    """What to run and how to record it. ``settings`` is ``name -> (value, where it came from)``."""

    command: tuple[str, ...]
    run_directory: Path
    environment: dict[str, str]
    settings: dict[str, tuple[Any, str]]


def begin_run(order: Order) -> None:
    """Make the run's directory and its manifest.

    Raises:
        OSError: it cannot be written.
    """
    order.run_directory.mkdir(parents=True)
    write_json(
        order.run_directory / "manifest.json",
        {
            "schema_version": SCHEMA_VERSION,
            "gpuledger_version": __version__,
            "name": order.run_directory.name.removesuffix(".ledger"),
            "command": redact(order.command),
            "started_ns": time.time_ns(),
            "ended_ns": None,
            "exit_status": None,
            "status": "running",
            "settings": {name: {"value": value, "origin": origin} for name, (value, origin) in order.settings.items()},
            "notes": [],
        },
    )


def child_environment(order: Order) -> dict[str, str]:
    """Return the child's environment: the user's own, our orders, and the bootstrap in front of PYTHONPATH."""
    environment = {**os.environ, **order.environment, "GPULEDGER_RUN": str(order.run_directory.absolute())}
    paths = [bootstrap_directory(), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def run_child(order: Order) -> int:
    """Return the program's status, as :mod:`subprocess` gives it: negative for the signal that ended it.

    Raises:
        FileNotFoundError: there is no such command.
        PermissionError: the command cannot be executed.
    """
    child: subprocess.Popen[bytes] | None = None
    waiting: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if child is None:
            waiting.append(number)
        elif child.poll() is None:
            child.send_signal(number)

    previous: dict[int, Any] = {}
    for name in _FORWARDED:
        number = getattr(signal, name)
        previous[number] = signal.signal(number, forward)
    previous[signal.SIGINT] = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        child = subprocess.Popen(order.command, env=child_environment(order), close_fds=False)
        for number in waiting:
            child.send_signal(number)
        return child.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def end_run(run_directory: Path, status: int, notes: Sequence[str] = ()) -> None:
    """Write into the manifest how the program ended, and what processes below it had to say.

    Raises:
        OSError: the manifest cannot be written.
    """
    manifest = read_json(run_directory / "manifest.json")
    manifest.update(
        ended_ns=time.time_ns(),
        exit_status=status if status >= 0 else 128 - status,
        signal=-status if status < 0 else None,
        status="complete",
        notes=[*manifest["notes"], *_left_notes(run_directory), *notes],
    )
    write_json(run_directory / "manifest.json", manifest)


def _left_notes(run_directory: Path) -> list[str]:
    lines: list[str] = []
    for place in sorted((run_directory / "notes").glob("*.txt")):
        lines += [line for line in place.read_text(encoding="utf-8", errors="replace").splitlines() if line]
    return list(dict.fromkeys(lines))


def end_like(status: int, flush: Callable[[], None]) -> None:
    """End this process as the child ended: with its status, or by the same signal. Does not return."""
    flush()
    if status < 0:
        number = -status
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        _no_core_file()
        os.kill(os.getpid(), number)
        time.sleep(1)
        status = 128 + number
    sys.exit(status)


def _no_core_file() -> None:
    """The child has left its core already: a second one, of ours, would only overwrite it."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
