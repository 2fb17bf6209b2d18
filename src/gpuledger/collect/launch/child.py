"""Start the program as a child process with the signal state that the user's shell would give it.

Uses fork and not ``posix_spawn``, which cannot ask the kernel to kill the child when the launcher dies.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import struct
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from gpuledger.processes.parent_death import dying_with

_MOMENT = struct.Struct("q")
_SET_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores from its start. A child process would inherit that."""


LONGEST_EXEC_NS = 2_000_000
"""Upper limit of the usual time of an exec. A busy machine wakes the parent later than that."""


@dataclass
class Lifetime:
    """Times at which a program started and ended, in Unix ns; 0 before.

    ``stopped_ns`` is when its parent first got a signal that ends programs; 0 without one.
    """

    started_ns: int = 0
    ended_ns: int = 0
    stopped_ns: int = 0


def start_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    mask: Collection[int],
    ignored: Collection[int] = (),
    lifetime: Lifetime | None = None,
) -> int:
    """Return the process id of ``command`` once it has been executed. It is killed if the calling thread dies.

    Args:
        command: The program, looked up in PATH, and its arguments.
        environment: All of its environment.
        mask: The signals that it starts with blocked. The caller blocks those that it waits for.
        ignored: The signals that it starts with ignored, beside those that this process ignores.
        lifetime: Receives the time at which the program started, as exactly as parent and child can determine it.

    Raises:
        FileNotFoundError: there is no such command.
        OSError: the command cannot be executed, or no process can be created.
    """
    die_with_parent = dying_with(os.getpid())
    reading, writing = os.pipe()  # a successful exec closes it without any data
    asked = mmap.mmap(-1, _MOMENT.size)  # shared: time of the child's call of exec
    try:
        with warnings.catch_warnings():  # from Python 3.12 on: other threads of the launcher are left behind on purpose
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                die_with_parent()
                _reset_signals(mask, ignored)
                asked[:] = _MOMENT.pack(time.time_ns())
                _execute(command, environment, writing)
            finally:  # the forked child must not run the launcher's cleanup
                os._exit(127)
        os.close(writing)
        writing = -1
        error_code = os.read(reading, 16)
        seen_ns, (asked_ns,) = time.time_ns(), _MOMENT.unpack(asked[:])
    finally:
        asked.close()
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    if error_code:
        os.waitpid(child, 0)
        raise OSError(int(error_code), os.strerror(int(error_code)))
    if lifetime is not None:
        lifetime.started_ns = min(seen_ns, asked_ns + LONGEST_EXEC_NS)
    return child


def _reset_signals(mask: Collection[int], ignored: Collection[int]) -> None:
    """Restore the signal handling with which the launcher was started."""
    for number in signal.valid_signals():
        if number in _SET_BY_PYTHON or callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for unheard in ignored:
        signal.signal(unheard, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _execute(command: Sequence[str], environment: Mapping[str, str], writing: int) -> NoReturn:
    """Execute the program. If that fails, write the error number to the parent's pipe."""
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606 - the user's own command
    except OSError as error:
        os.write(writing, str(error.errno).encode())
    except ValueError:  # a null character, or one that the file system encoding does not have
        os.write(writing, str(errno.EINVAL).encode())
    os._exit(127)
