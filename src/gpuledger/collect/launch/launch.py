"""The parent process: starts the program as a child, forwards signals and waits.

The child is the command that the user gave, with a few more environment variables. If it crashes, the parent still
completes the run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn, TextIO

from gpuledger.collect.launch.bootstrap import bootstrap_directory
from gpuledger.collect.launch.child import Lifetime, start_child
from gpuledger.model.run_writer import RunWriter

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are forwarded to the program. Stop and continue signals reach parent and child without it."""
_ENDING = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT})

_SI_KERNEL = 0x80
"""``si_code`` of a signal from the kernel (Linux, asm-generic/siginfo.h).

A terminal's signal has it, and goes to the whole process group.
"""

_POLL_S, _LONG_S = 0.1, 3600.0
"""Interval of checks whether the child has ended: without, and with, a thread that reports it."""


@dataclass(frozen=True)
class LaunchOrder:
    """The command to run, and the variables with the recording's settings."""

    command: tuple[str, ...]
    environment: dict[str, str]


def child_environment(order: LaunchOrder, run: RunWriter) -> dict[str, str]:
    """Return the child's environment: the user's, the recording's settings, and the bootstrap first in PYTHONPATH."""
    paths = [bootstrap_directory(), os.environ.get("PYTHONPATH", "")]
    place = str(run.path.absolute())
    return {
        **os.environ,
        **order.environment,
        "GPULEDGER_RUN": place,
        "GPULEDGER_RUN_ID": f"{run.run_id} {place}",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    started: Callable[[int], None] = lambda _: None,
    lifetime: Lifetime | None = None,
) -> int:
    """Return the program's exit status; the negative signal number if a signal ended it.

    The child gets the signal mask and the dispositions with which this process was started, and is killed if this
    process dies. A signal sent to this process is forwarded. A signal that a terminal sends to the whole process group
    is not, because it has already reached the child.

    Args:
        command: The program and its arguments.
        environment: All of its environment.
        started: Called with its process id once the program runs. It must not raise: this process would end, and the
            program with it.
        lifetime: Gets when the program began to run, before ``started`` is called, when it ended, and when a signal
            that ends programs came first.

    Raises:
        FileNotFoundError: there is no such command.
        OSError: the command cannot be executed.
    """
    ignored = {signal.SIGCHLD} if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN else set()
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    with _held_back(PASSED_ON) as mask:
        lifetime = lifetime or Lifetime()
        child = start_child(command, environment, mask, ignored, lifetime)
        waker = _start_waker(child, lifetime)
        patience_s = _POLL_S if waker is None else _LONG_S
        started(child)
        while True:
            received = signal.sigtimedwait({*PASSED_ON, signal.SIGCHLD}, patience_s)
            if received is None or received.si_signo == signal.SIGCHLD:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    if waker is not None:
                        waker.join()
                    lifetime.ended_ns = lifetime.ended_ns or time.time_ns()
                    return os.waitstatus_to_exitcode(status)
                continue
            if received.si_signo in _ENDING:
                lifetime.stopped_ns = lifetime.stopped_ns or time.time_ns()
            if received.si_code != _SI_KERNEL:
                os.kill(child, received.si_signo)


def _start_waker(child: int, lifetime: Lifetime) -> threading.Thread | None:
    """Return a thread that wakes this one when the child has ended; None if no more threads can be created."""
    waker = threading.Thread(target=_wake_when_ended, args=(child, threading.get_ident(), lifetime), daemon=True)
    try:
        waker.start()
    except RuntimeError:
        return None
    return waker


def _wake_when_ended(child: int, waiter: int, lifetime: Lifetime) -> None:
    """Wake one thread when its child has ended. The child is not reaped.

    The kernel's SIGCHLD goes to the whole process. While the waiting thread is busy, any other thread that does not
    block it (a sampler's, a numerical library's) can receive it, and it is lost.
    """
    with suppress(ChildProcessError):  # already reaped: the kernel's signal arrived
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        lifetime.ended_ns = time.time_ns()
        signal.pthread_kill(waiter, signal.SIGCHLD)


@contextmanager
def _held_back(numbers: Sequence[signal.Signals]) -> Iterator[set[int]]:
    """Block signals so that they can be waited for. Those that arrive after the child has ended are discarded."""
    mask = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, {*numbers, signal.SIGCHLD})}
    try:
        yield mask
    finally:
        while signal.sigtimedwait(set(numbers), 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end_like(status: int) -> NoReturn:
    """End this process as the child ended: with its exit status, or by the same signal."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError, AttributeError):  # closed, or None
            _empty(stream)
    if status < 0:
        number = -status
        _no_core_file()
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        status = 128 + number
    sys.exit(status)


def _empty(stream: TextIO) -> None:
    """Flush a stream. If nobody reads it, discard the data: Python would otherwise change the exit status."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _no_core_file() -> None:
    """Disable the core file. The child has written its own, which a second one would overwrite."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
