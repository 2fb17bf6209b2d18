"""Starts the sampler's process and tells it what to do."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuledger.errors import GpuLedgerError, NoDeviceError

_PATIENCE_S = 20.0


class Watcher:
    """A sampler at work, from construction to :meth:`stop`.

    Args:
        directory: The run's directory; the journal goes to its ``rank-0``.
        gpus: Numbers of the cards; None takes all.
        interval_ns: Time between two readings.
        pid: The process whose bytes are told apart, where it runs already.

    Raises:
        NoDeviceError: no driver, no card, no permission, or no such card.
        GpuLedgerError: the sampler does not start.
    """

    def __init__(self, directory: Path, gpus: Sequence[int] | None, interval_ns: int, pid: int | None = None) -> None:
        self.notes: list[str] = []
        self._numbers = itertools.count()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpuledger.collect.watch_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        order = {
            "directory": str((directory / "rank-0" / "journal").absolute()),
            "gpus": None if gpus is None else list(gpus),
            "interval_ns": interval_ns,
            "pid": pid,
        }
        self._tell(order)
        answer = self._hear()
        if answer is None or "error" in answer:
            self._process.wait()
            self._close_pipes()
            raise _error_of(answer)
        if answer.get("failure"):
            self.notes.append(answer["failure"])

    def follow(self, pid: int) -> None:
        """Tell apart the bytes of this process and those below it."""
        self._tell({"do": "pid", "pid": pid})

    def begin(self, name: str = "") -> int:
        """Begin a window of energy, now; return its number. Nothing is waited for."""
        number = next(self._numbers)
        self._tell({"do": "begin", "window": number, "name": name, "at_ns": time.time_ns()})
        return number

    def end(self, window: int) -> None:
        """End a window, now."""
        self._tell({"do": "end", "window": window, "at_ns": time.time_ns()})

    def stop(self) -> None:
        """End the sampler and take in its notes; one that was killed is noted."""
        self._tell({"do": "stop"})
        while (answer := self._hear()) is not None:
            if "ended" in answer:
                if answer.get("failure"):
                    self.notes.append(answer["failure"])
                break
        with suppress(BrokenPipeError, OSError):
            self._process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        try:
            status = self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._close_pipes()
        if status < 0:
            self.notes.append(f"The sampler was killed by signal {-status}: the samples end before the command did.")
        elif status:
            self.notes.append(f"The sampler ended with status {status}: the samples end before the command did.")

    def _tell(self, words: dict[str, Any]) -> None:
        """Send a line; a sampler that is gone is noticed at the end."""
        with suppress(BrokenPipeError, OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()

    def _hear(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError, OSError):
                    pipe.close()


def _error_of(answer: dict[str, Any] | None) -> GpuLedgerError:
    if answer is None:
        return GpuLedgerError("watch: the sampler did not start", hint="gpuledger doctor")
    return NoDeviceError(str(answer["error"]), hint=answer.get("hint"))
