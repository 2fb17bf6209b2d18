"""Jobs of several ranks that use the GPUs in turn: started, ended in time, and each without effect on the others."""

from __future__ import annotations

import argparse
import json
import os
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

from environment import describe_environment, write_results

LIB = Path(__file__).resolve().parent
LEFT_S = 20.0
"""No job is started with less time left."""


class JobFailedError(Exception):
    """A job ended with an error, or its time was over. What its ranks have written is there."""


@dataclass
class Jobs:
    """The jobs of one benchmark: their files, results and failures.

    Args:
        place: Directory for their files.
        given: Options of the benchmark.
        waiting: Names of the jobs that have not run.
    """

    place: Path
    given: argparse.Namespace
    waiting: list[str]
    results: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, list[str]] = field(default_factory=dict)
    earlier_s: float = 0.0
    began: float = field(default_factory=time.monotonic)
    lock: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.environment = describe_environment(self.given.device)

    def go_on(self) -> None:
        """Keep the results in the file of an earlier call, and leave out the jobs that succeeded there."""
        before = json.loads(Path(self.given.out).read_text(encoding="utf-8"))
        self.results, self.earlier_s = before["results"], before["wall_s"]
        self.waiting = [name for name in self.waiting if name in before["failed"] or name not in self.results]
        self.failed = {name: errors for name, errors in before["failed"].items() if name not in self.waiting}

    @property
    def left_s(self) -> float:
        """Return how much time is left."""
        return float(self.given.limit_s) - (time.monotonic() - self.began)

    def run(self, name: str, job: Callable[[Jobs, str], dict[str, Any]]) -> None:
        """Run one job if there is time, and write the results so far."""
        if self.left_s < LEFT_S:
            return
        begin = time.monotonic()
        try:
            found = job(self, name)
        except Exception as error:  # the other jobs go on
            self.fail(name, error)
            found = {}
        with self.lock:
            self.waiting.remove(name)
            self.results[name] = found
            self.write()
        said = " ".join(self.failed.get(name, ()))[-300:]
        print(f"{name:13s} {time.monotonic() - begin:6.1f} s  {said}", flush=True)

    def fail(self, name: str, error: Exception) -> None:
        """Record that a job, or a part of it, failed."""
        with self.lock:
            self.failed.setdefault(name, []).append(repr(error)[:1500])

    def write(self) -> None:
        """Write the results so far."""
        given = {name: value for name, value in vars(self.given).items() if name not in ("out", "resume")}
        document = {
            **self.environment,
            **given,
            "wall_s": self.earlier_s + time.monotonic() - self.began,
            "not_run": self.waiting,
            "failed": self.failed,
            "results": self.results,
        }
        write_results(Path(self.given.out), document)

    def train(self, name: str, way: str, *more: str, run: Path | None = None, passes: str = "memory") -> None:
        """Train in one way, recorded into ``run`` if it is given.

        Raises:
            JobFailedError: a rank failed, or the time was over.
        """
        given, place = self.given, self.place / name
        place.mkdir()
        words = [sys.executable, str(LIB / "sharded_train.py"), way, str(place / "out"), "--size", given.size]
        words += ["--device", given.device, "--steps", str(given.steps), "--window", str(given.window), *more]
        command = [sys.executable, str(LIB / "sharded_launch.py"), *words]
        if run is not None:
            options = ["-q", "--out", str(run), "--steps", f"1:{given.window}", "--passes", passes]
            command = [sys.executable, "-m", "gpuledger", "run", *options, "--", *command]
        files = {"WORLD_SIZE": given.ranks, "STORE": place / "store", "GATE": place, "LOCK": self.place / "lock"}
        self._run(command, {**os.environ, **{key: str(value) for key, value in files.items()}}, place / "errors")

    def _run(self, command: list[str], env: dict[str, str], errors: Path) -> None:
        with errors.open("w+b") as stream:
            process = subprocess.Popen(
                command, env=env, stdout=subprocess.DEVNULL, stderr=stream, start_new_session=True
            )
            try:
                status: int | str = process.wait(max(1.0, self.left_s))
            except subprocess.TimeoutExpired:
                status = "time is over"
            finally:
                _end_group(process)
            if status:
                stream.seek(0)
                text = stream.read().decode(errors="replace")
                raise JobFailedError(f"status {status}, {_last_step(errors.parent)}: {text[-1200:]}")

    def printed(self, name: str, way: str) -> list[dict[str, Any]]:
        """Return what the ranks wrote about one way; empty unless all of them did."""
        files = [self.place / name / f"out-{way}.{rank}.json" for rank in range(self.given.ranks)]
        if not all(one.exists() for one in files):
            return []
        return [json.loads(one.read_text(encoding="utf-8")) for one in files]


def _last_step(place: Path) -> str:
    """Return how far the ranks have come."""
    steps = [int(one.suffix[1:]) for one in place.glob("step.*")]
    return f"after step {max(steps)}" if steps else "before the first step ended"


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all processes that it has started."""
    for number, patience_s in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(patience_s)
