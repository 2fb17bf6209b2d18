"""Start the sampler's process and send orders to it."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuledger.errors import GpuLedgerError, NoDeviceError

START_S = 120.0
"""Longest time in seconds in which a driver initializes its GPUs."""

PATIENCE_S = 20.0
"""Longest time in seconds for the sampler to write its samples; with a failed GPU, the driver can block forever."""

LONGEST_NAME = 300
"""Characters of an energy window's name that are sent. Writes up to PIPE_BUF (4,096 bytes) are atomic."""


class Watcher:
    """A running sampler, from construction to :meth:`stop`. Only these two wait for it.

    Args:
        directory: The run's directory; the journal goes to its ``rank-0``.
        gpus: Numbers of the GPUs; None selects all.
        interval_ns: Time between two samples.
        pid: Process with memory to report separately, if it is already running.

    Raises:
        NoDeviceError: no driver, no GPU, no permission, or no such GPU.
        GpuLedgerError: the sampler does not start.
    """

    def __init__(self, directory: Path, gpus: Sequence[int] | None, interval_ns: int, pid: int | None = None) -> None:
        self.notes: list[str] = []
        self._numbers = itertools.count()
        self._heard = b""
        self._unheard = 0
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpuledger.collect.sampling.watch_process"],  # -P: not the user's queue.py
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        order = {
            "run_directory": str(directory.absolute()),
            "gpus": None if gpus is None else list(gpus),
            "interval_ns": interval_ns,
            "pid": pid,
        }
        try:
            os.set_blocking(self._stdin, False)
            self._send(order)
            answer = self._hear(START_S)
            if answer is None or "error" in answer:
                raise _error_of(answer)
        except BaseException:
            self._process.kill()
            self._process.wait()
            self._close_pipes()
            raise
        self._note_failure(answer)

    def follow(self, pid: int) -> None:
        """Report the memory of this process and its descendants separately."""
        self._send({"do": "pid", "pid": pid})

    def begin(self, name: str = "", at_ns: int | None = None) -> int:
        """Open an energy window, now or at a moment that has just passed; return its number."""
        number = next(self._numbers)
        self._send({"do": "begin", "window": number, "name": name[:LONGEST_NAME], "at_ns": at_ns or time.time_ns()})
        return number

    def end(self, window: int, at_ns: int | None = None) -> None:
        """Close an energy window, now or at a moment that has just passed."""
        self._send({"do": "end", "window": window, "at_ns": at_ns or time.time_ns()})

    def stop(self) -> None:
        """Stop the sampler and read its notes. If it was killed or does not answer, add a note."""
        self._send({"do": "stop"})
        if self._unheard:
            self.notes.append(f"The sampler was too busy and missed the start or end of {self._unheard:,} windows.")
        limit_s = time.monotonic() + PATIENCE_S
        answer = self._hear(PATIENCE_S)
        if answer is not None:
            self._note_failure(answer)
        self._close_pipes()
        try:
            status = self._process.wait(max(limit_s - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self.notes.append(f"The sampler did not answer for {PATIENCE_S:.0f} s, so its last samples are missing.")
            return
        if status < 0:
            self.notes.append(f"The sampler was killed by signal {-status}, so the samples end before the command did.")
        elif status:
            self.notes.append(
                f"The sampler ended with exit status {status}, so the samples end before the command did."
            )

    @property
    def _stdin(self) -> int:
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def _note_failure(self, answer: dict[str, Any]) -> None:
        if answer.get("failure"):
            self.notes.append(answer["failure"])

    def _send(self, words: dict[str, Any]) -> None:
        """Send a line. If the sampler has ended, or no longer reads, this is noticed at the end."""
        line = json.dumps(words).encode() + b"\n"
        # If the program restored SIGPIPE's default action, writing to a closed pipe must not end it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        try:
            os.write(self._stdin, line)
        except BlockingIOError:
            self._unheard += 1
        except BrokenPipeError:
            signal.sigtimedwait({signal.SIGPIPE}, 0)
        except (OSError, ValueError):
            pass  # the sampler has ended; stop() adds a note
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _hear(self, patience_s: float) -> dict[str, Any] | None:
        """Return the sampler's next line; None if it ends without one, or exceeds the time."""
        assert self._process.stdout is not None
        place = self._process.stdout.fileno()
        line = select.poll()  # unlike select, it accepts file descriptors above 1023
        line.register(place, select.POLLIN)
        limit_s = time.monotonic() + patience_s
        while b"\n" not in self._heard:
            ready = line.poll(max(limit_s - time.monotonic(), 0) * 1e3)
            words = os.read(place, 1 << 16) if ready else b""
            if not words:
                return None
            self._heard += words
        words, _, self._heard = self._heard.partition(b"\n")
        found: dict[str, Any] = json.loads(words)
        return found

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _error_of(answer: dict[str, Any] | None) -> GpuLedgerError:
    if answer is None:
        return GpuLedgerError("watch: the sampler did not start", hint="Run gpuledger doctor to see what is missing")
    return NoDeviceError(str(answer["error"]), hint=answer.get("hint"))
