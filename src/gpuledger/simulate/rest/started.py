"""The threads and processes that a program starts. Its threads are simulated, and other processes are not."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.rest.own_code import is_own, line_now
from gpuledger.simulate.rest.training_threads import trains_alone

_PYTHON = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed")
"""Names of commands that run a Python program."""
_IN_FIRST = "Call their function in the first process"


class StartedThreads:
    """Calls the function of a thread that trains, and waits for no other thread, where it is started.

    Then its loops end early, as those of the main thread do. Other threads run beside the main one. Until it is joined,
    it has its own handles of libraries, as it may still run then on a GPU.
    """

    def __init__(self, device: SimulatedDevice) -> None:
        self.called: list[str] = []
        """FILE:LINE of starts of threads that train."""
        self._device = device
        self._handles: weakref.WeakKeyDictionary[threading.Thread, int] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        """Watch the starts and ends of threads."""
        plain_start, plain_join = threading.Thread.start, threading.Thread.join

        def start(thread: threading.Thread) -> None:
            function = getattr(thread, "_target", None) or type(thread).run
            code = getattr(function, "__code__", None)
            is_main = threading.current_thread() is threading.main_thread()
            is_of_program = code is not None and is_own(code.co_filename)
            if is_of_program and is_main and not thread.ident and trains_alone(thread, is_own):
                self._call(thread)
            plain_start(thread)

        def join(thread: threading.Thread, timeout: float | None = None) -> None:
            plain_join(thread, timeout)
            if thread in self._handles and not thread.is_alive():
                self._device.handles_of_threads.give_back(self._handles.pop(thread))

        patches.put(threading.Thread, "start", start)
        patches.put(threading.Thread, "join", join)

    def _call(self, thread: threading.Thread) -> None:
        """Do the work of a thread in this one. The thread then starts with nothing to do."""
        place = line_now()
        if place not in self.called:
            self.called.append(place)
        self._device.begin_threads()
        here = self._device.of_thread
        before = here.number, here.stream
        self._handles[thread] = here.number = self._device.handles_of_threads.take()
        here.stream = 0
        try:
            thread.run()
        finally:
            here.number, here.stream = before
        thread.run = lambda: None  # type: ignore[method-assign]


class Started:
    """Records the threads that train and the processes that a program starts."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._threads, self._processes = StartedThreads(device), StartedProcesses()

    def install(self, patches: Patches) -> None:
        """Watch the starts."""
        self._threads.install(patches)
        self._processes.install(patches)

    def hint(self) -> str:
        """Return what the user can do if the first process does not train; "" if there are no others."""
        return self._processes.hint()

    def describe(self) -> Iterator[str]:
        """Yield sentences on what is not simulated."""
        if self._processes.places:
            yield f"{self._processes.describe()}: what they allocate is not included."
        if self._threads.called:
            yield (
                f"{', '.join(self._threads.called)}: a thread that trains was simulated in the main thread, up to its "
                "end. What runs beside it is simulated after it."
            )


class StartedProcesses:
    """Records where the program has started processes that may train, which are not simulated.

    These run a function of the program, or a Python program.
    """

    def __init__(self) -> None:
        self.places: dict[str, str] = {}
        """FILE:LINE -> what was started, as arguments of ``gpuledger estimate``; "" if it was a function."""

    def install(self, patches: Patches) -> None:
        """Watch the starts of processes."""
        plain_start, plain_init = BaseProcess.start, subprocess.Popen.__init__

        def start(process: Any) -> None:
            code = getattr(getattr(process, "_target", None) or type(process).run, "__code__", None)
            if code is not None and is_own(code.co_filename):
                self._note("")
            plain_start(process)

        def init(process: Any, args: Any, *more: Any, **how: Any) -> None:
            words = args.split() if isinstance(args, str) else list(map(os.fsdecode, _words_of(args)))
            program = _python_program(words)
            if program is not None:
                self._note(program)
            plain_init(process, args, *more, **how)

        patches.put(BaseProcess, "start", start)
        patches.put(subprocess.Popen, "__init__", init)

    def describe(self) -> str:
        """Return where processes were started; "" if none was."""
        return f"Processes that are started at {', '.join(self.places)} are not simulated" if self.places else ""

    def hint(self) -> str:
        """Return what the user can do if nothing but these processes trains; "" if none was started."""
        programs = [program for program in self.places.values() if program]
        instead = f"Estimate their program: gpuledger estimate {programs[0]}" if programs else _IN_FIRST
        return f"{self.describe()}. {instead}" if self.places else ""

    def _note(self, program: str) -> None:
        place = line_now()
        if place:
            self.places[place] = program


def _words_of(args: Any) -> list[Any]:
    words = [args] if isinstance(args, (bytes, os.PathLike)) else list(args)
    return [word for word in words if isinstance(word, (str, bytes, os.PathLike))]


def _python_program(words: Sequence[str]) -> str | None:
    """Return the program that a command runs with Python, or with a launcher of torch; None of another command."""
    if not words or not _PYTHON.fullmatch(os.path.basename(words[0])):
        return None
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        rest.pop(0)
    return None if not rest or rest[0] == "-c" else " ".join(rest)
