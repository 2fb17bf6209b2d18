"""The parent: starts the program as a child, passes signals on and waits.

The child is what the user would have started, with a few more variables in its environment. Whatever happens to it,
the parent lives on to write the run to its end.
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
"""Signals that end or tell the program something; what stops and continues reaches parent and child alike."""

_SI_KERNEL = 0x80
"""``si_code`` of a signal from the kernel (Linux, asm-generic/siginfo.h): a terminal's goes to the whole group."""

_POLL_S, _LONG_S = 0.1, 3600.0
"""How long to wait for a signal before looking whether the child has ended: without and with a thread that tells."""


@dataclass(frozen=True)
class Order:
    """What to run, and the variables that say how to record it."""

    command: tuple[str, ...]
    environment: dict[str, str]


def child_environment(order: Order, run: RunWriter) -> dict[str, str]:
    """Return the child's environment: the user's own, our orders, and the bootstrap in front of PYTHONPATH."""
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
    """Return the program's status; negative for the signal that ended it.

    The child gets the signal mask and the dispositions this process was started with, and is killed where this process
    dies: the user who kills what was started means the program. A signal sent to this process is
    sent on; one that a terminal sent to the whole process group has reached the child already.

    Args:
        command: The program and its arguments.
        environment: All of its environment.
        started: Called with its process id once the program runs. It must not raise: this process would end, and the
            program with it.
        lifetime: Gets when the program began to run, before ``started`` is called, and when it ended.

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
            told = signal.sigtimedwait({*PASSED_ON, signal.SIGCHLD}, patience_s)
            if told is None or told.si_signo == signal.SIGCHLD:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    if waker is not None:
                        waker.join()
                    lifetime.ended_ns = lifetime.ended_ns or time.time_ns()
                    return os.waitstatus_to_exitcode(status)
            elif told.si_code != _SI_KERNEL:
                os.kill(child, told.si_signo)


def _start_waker(child: int, lifetime: Lifetime) -> threading.Thread | None:
    """Return a thread that wakes this one when the child has ended; None where no more threads can be made."""
    waker = threading.Thread(target=_wake_when_ended, args=(child, threading.get_ident(), lifetime), daemon=True)
    try:
        waker.start()
    except RuntimeError:
        return None
    return waker


def _wake_when_ended(child: int, waiter: int, lifetime: Lifetime) -> None:
    """Tell one thread that its child has ended, which stays to be waited for.

    The kernel's own SIGCHLD is for the whole process: while the waiting thread is busy, any other thread that does not
    block it (a sampler's, a numerical library's) takes it, and it is gone.
    """
    with suppress(ChildProcessError):  # it was waited for already: the kernel's signal was heard
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        lifetime.ended_ns = time.time_ns()
        signal.pthread_kill(waiter, signal.SIGCHLD)


@contextmanager
def _held_back(numbers: Sequence[signal.Signals]) -> Iterator[set[int]]:
    """Keep signals waiting, to be asked for; those that came too late for the child are forgotten."""
    mask = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, {*numbers, signal.SIGCHLD})}
    try:
        yield mask
    finally:
        while signal.sigtimedwait(set(numbers), 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end_like(status: int) -> NoReturn:
    """End this process as the child ended: with its status, or by the same signal."""
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
    """Write what a stream holds; where nobody reads it, drop it, or Python would end with a status of its own."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _no_core_file() -> None:
    """The child has left its core already: a second one, of ours, would only overwrite it."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
