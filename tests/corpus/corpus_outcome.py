"""One execution of a program, bare or recorded: everything that can be seen of it from outside."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from corpus_programs import HERE, Program

TIMEOUT_S = 600.0
"""Longest time of a program, which only ends one that hangs."""

PATIENCE_S = 2.0
"""How long helpers of a program that has ended, such as a fork server, may take to notice."""

BUSY_PATIENCE_S = 60.0
"""The same where one of them waits for a processor."""

_OF_OTHERS = ("GPULEDGER_", "COV_", "COVERAGE_", "PYTEST_", "CORPUS_", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")


@dataclass(frozen=True)
class Outcome:
    """How a program ended; ``status`` is None where it had to be killed after the time limit."""

    status: int | None
    stdout: bytes
    stderr: bytes
    reports: dict[str, Any]
    files: dict[str, str]
    processes_left: int
    run: Path | None = None
    notes: list[str] = field(default_factory=list)


class Place:
    """A directory in which a program runs again and again at the same path, so that its outputs can be equal."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "work"
        self.streams = [root / name for name in ("stdin", "stdout", "stderr")]
        self.state = root / "state.jsonl"
        self.run = root / "run.ledger"

    def prepare(self, program: Program) -> Path:
        """Return the script after making everything as it was before the first execution."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.work.mkdir(parents=True)
        for stream in self.streams:
            stream.write_text("")
        self.streams[0].write_text(program.stdin and program.stdin + "\n")
        script = self.work / program.path.name
        shutil.copy(program.path, script)
        return script

    def environment(self, program: Program) -> dict[str, str]:
        """Return the environment that bare and recorded programs share."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_OTHERS)}
        paths = [str(HERE), *filter(None, [kept.get("PYTHONPATH")])]
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "CORPUS_STATE": str(self.state),
            **dict(program.environment),
        }

    def outcome(self, status: int | None, session: int, *, recorded: bool) -> Outcome:
        """Return all that the program left; what still runs of it is ended."""
        left = _end_session(session)
        script_caches = {"__pycache__"}
        files = {
            str(path.relative_to(self.work)): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            for path in sorted(self.work.rglob("*"))
            if path.is_file() and not script_caches & set(path.parts)
        }
        lines = self.state.read_text().splitlines() if self.state.exists() else []
        reports: dict[str, Any] = {}
        for state in map(json.loads, lines):
            reports[f"{state['label']}{'+' * sum(state['label'] == one.rstrip('+') for one in reports)}"] = state
        run, notes = (self.run, _notes(self.run)) if recorded else (None, [])
        return Outcome(
            status, self.streams[1].read_bytes(), self.streams[2].read_bytes(), reports, files, left, run, notes
        )


def _end_session(session: int) -> int:
    """Return how many processes of a session are left after a moment, and kill them."""
    begun_s = time.monotonic()
    while left := _of_session(session):
        waited_s = time.monotonic() - begun_s
        if waited_s > BUSY_PATIENCE_S or (waited_s > PATIENCE_S and not any(map(_is_running, left))):
            break
        time.sleep(0.05)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    return len(left)


def _is_running(process: psutil.Process) -> bool:
    """Return whether a process runs, or waits for a processor."""
    with suppress(psutil.Error):
        return process.status() == psutil.STATUS_RUNNING
    return False


def _of_session(session: int) -> list[psutil.Process]:
    found = []
    for number in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(int(number)) == session:
                process = psutil.Process(int(number))
                found += [process] if process.status() != psutil.STATUS_ZOMBIE else []
    return found


def _notes(run: Path) -> list[str]:
    """Return what is wrong with a run: that it cannot be read, or that the recorder had to give up."""
    from gpuledger.errors import GpuLedgerError
    from gpuledger.model.journal.journal import OWN_ERROR
    from gpuledger.services.runs import load

    try:
        loaded = load(run)
        for rank in loaded.ranks:
            rank.table("blocks")
            rank.table("steps")
    except GpuLedgerError as error:
        return [f"the run cannot be read: {error}"]
    notes = {*loaded.manifest.notes, *(note for rank in loaded.ranks for note in rank.manifest.notes)}
    return sorted(note for note in notes if OWN_ERROR in note or "could not" in note)


# -- two ways to run ----------------------------------------------------------------------------------------------


def run_fresh(program: Program, place: Place, options: tuple[str, ...] | None) -> Outcome:
    """Return the outcome in a process of its own; recorded with ``options`` where they are given."""
    script = place.prepare(program)
    ours: tuple[str, ...] = ()
    if options is not None:
        ours = ("-m", "gpuledger", "run", "-q", "--out", str(place.run), *options)
    command = [sys.executable, *ours, *program.launch, str(script), *program.arguments]
    stdin, stdout, stderr = (stream.open("rb" if number == 0 else "ab") for number, stream in enumerate(place.streams))
    with stdin, stdout, stderr:
        child = subprocess.Popen(
            command,
            cwd=place.work,
            env=place.environment(program),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        status: int | None = child.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        status = None
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return place.outcome(status, child.pid, recorded=options is not None)


class Zygote:
    """An interpreter that has loaded torch, and forks for each program; see corpus_zygote.py."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_OF_OTHERS)}
        paths = [str(HERE), *filter(None, [environment.get("PYTHONPATH")])]
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "corpus_zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def run(self, program: Program, place: Place, options: tuple[str, ...] | None) -> Outcome:
        """Return the outcome in a fork; recorded with ``options`` where they are given."""
        script = place.prepare(program)
        environment = place.environment(program)
        finish: Callable[[int], None] | None = None
        if options is not None:
            environment, finish = _begin_run(place, script, environment, options)
        order = {
            "script": str(script),
            "arguments": program.arguments,
            "directory": str(place.work),
            "environment": environment,
            "streams": [str(stream) for stream in place.streams],
        }
        child, status = self._order(order)
        if finish is not None:
            finish(status if status is not None else -signal.SIGKILL)
        return place.outcome(status, child, recorded=options is not None)

    def _order(self, order: dict[str, Any]) -> tuple[int, int | None]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        child = int(stdout.readline())
        late = threading.Event()

        def end_late() -> None:
            late.set()
            os.kill(child, signal.SIGKILL)

        timer = threading.Timer(TIMEOUT_S, end_late)
        timer.start()
        status = int(stdout.readline())
        timer.cancel()
        return child, None if late.is_set() else status


def _begin_run(
    place: Place, script: Path, environment: dict[str, str], options: tuple[str, ...]
) -> tuple[dict[str, str], Callable[[int], None]]:
    """Return the environment that starts a recording, and what ends it, as the launcher has them."""
    from gpuledger.collect.launch.launch import LaunchOrder, child_environment
    from gpuledger.config import resolve
    from gpuledger.model.run_directory import rank_directories
    from gpuledger.model.run_writer import RunWriter, new_manifest
    from gpuledger.services.runs import settle

    words = iter(options)
    flags: dict[str, Any] = {word.removeprefix("--"): next(words) for word in words}
    settings = resolve(flags, {}, place.work)
    told = {
        "GPULEDGER_STEPS": settings["steps"].value,
        "GPULEDGER_STACKS": "1" if settings["stacks"].value else "0",
        "GPULEDGER_DEVICES": settings["devices"].value,
    }
    order = LaunchOrder((sys.executable, str(script)), told)
    run = RunWriter.open(place.run, new_manifest(place.run.name, order.command, {}))

    def finish(status: int) -> None:
        run.close(status=status)
        if rank_directories(place.run):
            settle(place.run)

    ours = {name: child_environment(order, run)[name] for name in (*told, "GPULEDGER_RUN", "GPULEDGER_RUN_ID")}
    return {**environment, **ours}, finish
