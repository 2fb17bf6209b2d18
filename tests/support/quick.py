"""Programs as in ``programs.py``, in forks of an interpreter that has loaded torch: for what is recorded and said.

Not for what a fork changes: exits, signals and their numbers, what is loaded, processes and who started them.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

from built import build
from folders import TESTS
from programs import Ended, environment, execute


@cache
def quick_python() -> str:
    """Return a command that stands for this Python; one server serves all workers of a test run."""
    of_run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    directory = Path(tempfile.gettempdir(), f"quick-{of_run[:12]}")
    directory.mkdir(exist_ok=True)
    command, place = directory / "python", directory / "socket"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _keep_at_work(place):
            build(TESTS / "support" / "quick_python.c", command, PYTHON=sys.executable, PLACE=str(place))
            kept = {name: value for name, value in os.environ.items() if not name.startswith("GPULEDGER_")}
            kept["OMP_NUM_THREADS"] = "1"
            words = [sys.executable, str(TESTS / "support" / "quick_server.py"), str(place), str(command)]
            server = _start(words, kept, directory / "log")
            while not _keep_at_work(place):
                assert os.waitpid(server, os.WNOHANG) == (0, 0), (directory / "log").read_text()
                time.sleep(0.05)
    return str(command)


def _start(words: list[str], environment: dict[str, str], log: Path) -> int:
    """Return a process that outlives this one where another worker still needs it."""
    said = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(words[0], words, environment, file_actions=said, setsid=True)


def _keep_at_work(place: Path) -> bool:
    """Return whether there is a server; it stays as long as this process does, with which the connection ends."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(place))
    except OSError:
        connection.close()
        return False
    connection.send(bytes(4))
    connection.detach()
    return True


def quick_gpuledger() -> tuple[str, ...]:
    """Return the words that begin a command of gpuledger's."""
    return quick_python(), "-m", "gpuledger"


def bare(words: list[str], directory: Path, **how: Any) -> Ended:
    """Return how the program ends without us."""
    return execute([quick_python(), *words], directory, **how)


def recorded(words: list[str], directory: Path, options: tuple[str, ...] = ("-q",), **how: Any) -> Ended:
    """Return how the program ends below ``gpuledger run``."""
    return execute([*quick_gpuledger(), "run", *options, *words], directory, **how)


def recorded_alone(words: list[str], directory: Path, options: tuple[str, ...] = ("-q",), **how: Any) -> Ended:
    """Return how a program in an interpreter of its own ends below ``gpuledger run``: only the launcher is a fork."""
    env = {**(how.pop("env", None) or environment()), "QUICK_PROGRAMS_PYTHON": sys.executable}
    return recorded(words, directory, options, env=env, **how)
