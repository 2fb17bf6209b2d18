"""Python in forks of an interpreter that has loaded what programs here import: a tenth of the time of a fresh one.

``quick.py`` starts it with the place of its socket and of a command that stands for Python (``quick_python.c``). The
command hands over its words, environment, directory and streams, waits, and ends as the fork ended. In a fork
``sys.modules`` holds the standard library alone, so that gpuledger's own bootstrap meets ``import torch`` as it does in
a fresh interpreter.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import runpy
import selectors
import shutil
import signal
import site
import socket
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from preloaded import COMPILER, RECORDER, Kept, make_cheap_to_fork, modules_of, set_aside

COMMANDS = ("cli", "report", "services", "analyze", "model", "processes", "files", "cards", "collect.sampling")
"""The packages of gpuledger's that commands load, and what they start beside a program."""

FLAGS = ("-u", "-P")
PROGRAMS_PYTHON = "QUICK_PROGRAMS_PYTHON"
"""The variable with what the fork takes for its own Python, with which it starts programs."""
LARGEST_DESCRIPTOR = 256


def _threads() -> set[str]:
    """Return the names of this process's threads; Arrow's allocator begins its own anew after a fork."""
    return {Path(f"/proc/self/task/{number}/comm").read_text().strip() for number in os.listdir("/proc/self/task")}


def _groups() -> Iterator[tuple[str, ...]]:
    """Yield what is loaded beforehand."""
    yield from (("numpy",), ("numpy.random",), ("numpy.ma",), ("pynvml",), ("torch",), ("torch._dynamo",), RECORDER)
    yield from (("fsspec",), ("s3fs",), ("gcsfs",))
    yield "click", "rich.console", "rich.table", "psutil", "pyarrow", "pyarrow.parquet", "pyarrow.compute"
    yield modules_of(*COMMANDS)
    yield modules_of("simulate")
    yield COMPILER


def _keep_frozen() -> None:
    """Thaw nothing, in place of ``gc.unfreeze``.

    An estimate sets torch aside while the program imports, and thaws it. Here that is all that any fork may load: to
    walk over it took half the time of an estimate.
    """


def serve(place: str, command: str) -> None:
    """Serve orders until nobody is left who may give one."""
    # Held by no variable: recordings search what the variables of these functions lead to for the names of tensors.
    sys.meta_path.insert(0, Kept(set_aside(_groups())))
    own = Path("/proc/self/comm").read_text(encoding="utf-8").strip()
    assert _threads() <= {own, "jemalloc_bg_thd"}, f"threads would be missing in the forks: {_threads()}"
    make_cheap_to_fork()
    gc.unfreeze = _keep_frozen  # type: ignore[assignment]
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place + ".new")
    listening.listen(64)
    os.rename(place + ".new", place)
    waiting = selectors.DefaultSelector()
    waiting.register(listening, selectors.EVENT_READ)
    customers: dict[socket.socket, int] = {}
    was_asked = False
    while customers or not was_asked:
        for key, _ in waiting.select():
            if key.fileobj is listening:
                customer = listening.accept()[0]
                was_asked = True
                customers[customer] = _take_order(customer, command)
                waiting.register(customer, selectors.EVENT_READ)
                if customers[customer]:
                    child = customers[customer]
                    waiting.register(os.pidfd_open(child), selectors.EVENT_READ, (customer, child))
            elif key.data is None:  # a customer who is gone, and with it what it ordered
                gone: Any = key.fileobj
                waiting.unregister(gone)
                pid = customers.pop(gone)
                gone.close()
                if pid:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            else:
                waiting.unregister(key.fileobj)
                os.close(key.fd)
                customer, child = key.data
                _tell(customer, child, customers)
    shutil.rmtree(os.path.dirname(place), ignore_errors=True)


def _tell(customer: socket.socket, child: int, customers: dict[socket.socket, int]) -> None:
    """Tell a customer how its order ended, unless the customer is gone and the child was killed for it.

    Only this child is waited for: another one that ended at the same moment has a message of its own under way.
    """
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if customer in customers:
        customers[customer] = 0
        with suppress(OSError):
            customer.send(status.to_bytes(2, "little", signed=True))


def _take_order(customer: socket.socket, command: str) -> int:
    """Return the process that does what is ordered; 0 for a customer who only keeps this server at work."""
    head, streams, _, _ = socket.recv_fds(customer, 4, 3)
    length = int.from_bytes(head, "little")
    if not length:
        return 0
    text = b""
    while len(text) < length and (piece := customer.recv(length - len(text))):
        text += piece
    child = os.fork() if len(text) == length else None  # None: a customer who is gone before the order is whole
    if child == 0:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        _open_streams()
        os.closerange(3, LARGEST_DESCRIPTOR)
        run(*_read_order(text), command)
    for stream in streams:
        os.close(stream)
    return child or 0


def _read_order(text: bytes) -> tuple[list[str], dict[str, str], str]:
    """Return the words, the environment and the directory of an order, as ``quick_python.c`` writes them."""
    count, *texts, directory, _ = map(os.fsdecode, text.split(b"\0"))
    words, variables = texts[: int(count)], texts[int(count) :]
    return words, dict(one.split("=", 1) for one in variables if "=" in one), directory


def _open_streams() -> None:
    """Open the standard streams anew: what this server found out about its own, as whether they can seek, is not so."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, f"__{name}__")
        new = os.fdopen(number, "w" if number else "r", encoding=old.encoding, errors=old.errors, closefd=False)
        new.reconfigure(line_buffering=number == 2 or os.isatty(number))
        setattr(sys, f"__{name}__", new)
        setattr(sys, name, new)


def run(words: list[str], environment: dict[str, str], directory: str, command: str) -> NoReturn:
    """Be ``python WORDS``: ``-m MODULE``, ``-c TEXT`` or a script, with ``-u`` and ``-P`` or without."""
    python = environment.pop(PROGRAMS_PYTHON, command)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.executable = python
    sys.orig_argv = [command, *words]
    paths = [os.path.abspath(path) for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *sys.path[1:]]
    _load_libraries(environment.get("LD_LIBRARY_PATH", ""))
    sys.modules.pop("sitecustomize", None)  # this server's own: Python of Debian and Ubuntu has one
    site.execsitecustomize()
    main_module = types.ModuleType("__main__")
    main_module.__dict__.update(__builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main_module
    status = 0
    is_safe, words = words[0] == "-P", words[words[0] in FLAGS :]
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            sys.path[:0] = [] if is_safe else [directory]
            runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        else:
            _run_source(words, main_module)
    except SystemExit as error:
        status = _status_of(error)
    except BaseException as error:
        place = error.__traceback__
        for _ in range(2):  # this file's frames
            place = place and place.tb_next
        sys.excepthook(type(error), error.with_traceback(place), place)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    _leave(status)


def _load_libraries(paths: str) -> None:
    """Load the libraries of LD_LIBRARY_PATH, which the loader reads at a program's start alone: they win by name."""
    for path in filter(None, paths.split(os.pathsep)):
        for library in Path(path).glob("*.so*"):
            with suppress(OSError):
                ctypes.CDLL(str(library))


def _run_source(words: list[str], main_module: types.ModuleType) -> None:
    if words[0] == "-c":
        source, name, sys.argv = words[1].encode(), "<string>", ["-c", *words[2:]]
        sys.path.insert(0, "")
    else:
        name, sys.argv = os.path.abspath(words[0]), list(words)
        sys.path.insert(0, os.path.dirname(os.path.realpath(name)))
        main_module.__file__ = name
        with open(name, "rb") as stream:
            source = stream.read()
    exec(compile(source, name, "exec", dont_inherit=True), main_module.__dict__)


def _status_of(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def _leave(status: int) -> NoReturn:
    """Leave as the interpreter does, but for taking all modules apart."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    serve(*sys.argv[1:])
