"""Describe why a program failed on a simulated GPU and where in its own code, and what it starts beside its thread."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from gpuledger.errors import InputError
from gpuledger.processes.child_job import ProgramTraceback
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.ranks.place import RankPlace
from gpuledger.simulate.rest.training_threads import trains_alone

_WITHOUT_BYTES = re.compile(r"data is not allocated|data pointer|doesn't have storage|without storage", re.IGNORECASE)
DISTRIBUTED = ("FSDP", "torch.distributed", "torch.multiprocessing.spawn")
"""Parts that need several ranks."""
JAGGED = "a nested tensor with jagged layout"
WHAT_TO_TELL = "Declare the shape of its result with gpuledger.fake_output (docs/estimate.md), or run it on a GPU"
CRASHED_HINT = "C++ code failed in this line without a GPU. Remove the call"
_FOREIGN = (
    ("/torch/distributed/fsdp/", DISTRIBUTED[0]),
    ("/torch/distributed/_composable/", DISTRIBUTED[0]),
    ("/torch/distributed/", DISTRIBUTED[1]),
    ("/torch/multiprocessing/spawn.py", DISTRIBUTED[2]),
    ("/torch/cuda/graphs.py", "a CUDA graph"),
    ("/triton/", "a Triton kernel"),
    ("/torch/nested/", JAGGED),
)


_STDLIB = f"{sysconfig.get_path('stdlib')}/"
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/torch/")
"""Parts of the paths of files that are not the program's own."""

_PYTHON = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed")
"""Names of commands that run a Python program."""
_IN_FIRST = "Call their function in the first process"
_RANKS = "Name the number of ranks with --world-size N"
_OF_TORCHRUN = frozenset(RankPlace(0, 1).environment())
_OF_ENVIRONMENT = (os.__file__, "<frozen os>")
_NEEDS = (
    (ModuleNotFoundError, "Install it in the environment in which gpuledger runs"),
    (FileNotFoundError, "An estimate reads the program's files: run it where they are"),
    (PermissionError, "An estimate reads the program's files: run it where they can be read"),
    (EOFError, "Give the program its input with a pipe or as arguments"),
    (OSError, "An estimate needs the files and the network that the program needs"),
)
"""Kind of error -> what the user can do."""
OTHER_THREADS = (
    "The program has other threads, and only the main thread is simulated. If they compute, call their work in the "
    "main thread"
)


def hint_on(error: BaseException) -> str:
    """Return what the user can do about an error of the program; "" if it is not known."""
    frames = traceback.extract_tb(error.__traceback__)
    innermost = frames[-1].filename if frames else ""
    if isinstance(error, KeyError) and innermost in _OF_ENVIRONMENT:
        return _RANKS if error.args[0] in _OF_TORCHRUN else f"Set the environment variable {error.args[0]}"
    missing = str(error.filename) if isinstance(error, FileNotFoundError) else ""
    if missing.endswith("nvidia-smi") or type(error).__name__.startswith("NVML"):
        return "Ask torch.cuda for the GPU: it answers for the simulated one"
    if missing and innermost == subprocess.__file__:
        return f"Install {missing}, which the program starts"
    if isinstance(error, SystemExit) and error.code:
        return "The program ended itself before a step. Give it what it asks for"
    known = next((hint for kind, hint in _NEEDS if isinstance(error, kind)), "")
    return known or (OTHER_THREADS if _has_other_threads() else "")


def _has_other_threads() -> bool:
    """Return whether a function of the program's own runs in another thread."""
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    return any(
        is_own(frame.f_code.co_filename)
        for innermost in frames.values()
        for frame, _ in traceback.walk_stack(innermost)
    )


class StartedThreads:
    """Records the program's own functions that are started in threads. One that trains is called at once instead.

    The others are not simulated.
    """

    def __init__(self) -> None:
        self.any_own = False
        self.called: list[str] = []
        """FILE:LINE of starts of threads that train."""

    def install(self, patches: Patches) -> None:
        """Watch the starts of threads."""
        plain_start = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            function = getattr(thread, "_target", None) or type(thread).run
            code = getattr(function, "__code__", None)
            is_main = threading.current_thread() is threading.main_thread()
            if code is not None and is_own(code.co_filename):
                if is_main and not thread.ident and trains_alone(thread, is_own):
                    self._call(thread)
                else:
                    self.any_own = True
            plain_start(thread)

        patches.put(threading.Thread, "start", start)

    def _call(self, thread: threading.Thread) -> None:
        """Do the work of a thread in this one. The thread then starts with nothing to do."""
        place = line_now()
        if place not in self.called:
            self.called.append(place)
        thread.run()
        thread.run = lambda: None  # type: ignore[method-assign]


class Started:
    """Records the threads and processes of the program, of which only the first thread is simulated."""

    def __init__(self) -> None:
        self._threads, self._processes = StartedThreads(), StartedProcesses()

    def install(self, patches: Patches) -> None:
        """Watch the starts."""
        self._threads.install(patches)
        self._processes.install(patches)

    def hint(self) -> str:
        """Return what the user can do if the first thread does not train; "" if there are no others."""
        return self._processes.hint() or (OTHER_THREADS if self._threads.any_own else "")

    def describe(self) -> Iterator[str]:
        """Yield sentences on what is not simulated."""
        if self._processes.places:
            yield f"{self._processes.describe()}: what they allocate is not included."
        if self._threads.any_own:
            yield f"{OTHER_THREADS}: what they allocate is not included."
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


def is_own(file: str) -> bool:
    """Return whether a file is the program's own, not one of a library."""
    is_file = bool(file) and file[0] != "<" and "/gpuledger/" not in file
    return is_file and not file.startswith(_STDLIB) and not any(part in file for part in _LIBRARIES)


def line_now() -> str:
    """Return the innermost line of the program's own code that runs, as FILE:LINE; "" if there is none."""
    return own_place((frame.filename, frame.lineno or 0) for frame in traceback.extract_stack())


def own_place(frames: Iterable[tuple[str, int]]) -> str:
    """Return the innermost line of the program's own code, as FILE:LINE; "" if there is none.

    Args:
        frames: Paths and lines, the outermost first.
    """
    known = [(file, line) for file, line in frames if file and file[0] != "<" and "/gpuledger/" not in file]
    own = [place for place in known if is_own(place[0])]
    found = own or [place for place in known if "/torch/" not in place[0]]
    return f"{Path(found[-1][0]).name}:{found[-1][1]}" if found else ""


def reserved_bytes_of(outcome: Mapping[str, Any]) -> int | None:
    """Return the peak of reserved bytes of a program that was followed; None if it failed."""
    return outcome["peak_reserved_bytes"] if outcome.get("ended") in ("steps", "exit") else None


def describe_failure(error: BaseException, *, with_ranks: bool = False) -> dict[str, Any]:
    """Return the error's message, with the file and line of the program's own code.

    Args:
        error: What the program raised.
        with_ranks: Whether the program ran as one of several ranks, so that it could use ``torch.distributed``.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "place": own_place((frame.filename, frame.lineno or 0) for frame in frames),
        "hint": hint_on(error),
        "unmodelled": _unmodelled(error, frames, with_ranks),
    }


def _unmodelled(error: BaseException, frames: traceback.StackSummary, with_ranks: bool) -> str:
    """Return the part of the simulation that an error comes from; "" if it is an error of the program."""
    for part, name in _FOREIGN:
        if not (with_ranks and name in DISTRIBUTED) and any(part in frame.filename for frame in frames):
            return f"{name} is not supported on a simulated GPU"
    if isinstance(error, RuntimeError) and _WITHOUT_BYTES.search(str(error)):
        return "C++ code reads the values of a tensor, and an estimate computes none"
    return ""


def _hint_on(unmodelled: str) -> str:
    if "C++" in unmodelled:
        return WHAT_TO_TELL
    if any(name in unmodelled for name in DISTRIBUTED):
        return _RANKS
    if JAGGED in unmodelled:
        return "Estimate the program with padded tensors, which need at least as much memory"
    return "Estimate the program without it"


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "")


def refuse_failure(program: Sequence[str], outcome: dict[str, Any]) -> None:
    """Raise the failure of a program as an error.

    Raises:
        InputError: the program raised, ran no step, or uses something that cannot be simulated.
    """
    ended = outcome["ended"]
    name = program[1] if program[0] == "-m" else program[0]
    place = outcome.get("place") or name
    if ended == "ranks":
        raise InputError(outcome["message"], hint=outcome["hint"])
    if ended == "not modelled":
        raise InputError(f"{place}: {outcome['message']}", hint=WHAT_TO_TELL)
    if ended == "raised" and outcome.get("unmodelled"):
        raise InputError(
            f"{place}: {outcome['unmodelled']} ({outcome['kind']}: {_first_line(outcome['message'])})",
            hint=_hint_on(outcome["unmodelled"]),
        ) from ProgramTraceback(outcome["traceback"])
    if ended == "raised":
        shown = "The program raised this on the simulated GPU. Show where with: gpuledger -v estimate …"
        raise InputError(
            f"{place}: {outcome['kind']}: {_first_line(outcome['message'])}", hint=outcome.get("hint") or shown
        ) from ProgramTraceback(outcome["traceback"])
    if outcome["steps"] and not outcome["allocations"]:
        where = (outcome.get("optimizers") or [name])[0]
        raise InputError(f"{where}: did not use the GPU", hint="Move the model and its inputs there with .to('cuda')")
    status = outcome.get("status")
    if not outcome["steps"] and (status or not outcome["allocations"]):
        how = f" (exit status {status})" if status else ""
        why = "" if outcome.get("message", "").isdecimal() else _first_line(outcome.get("message", ""))
        raise InputError(
            f"{place}: no training step was seen{how}{f': {why}' if why else ''}",
            hint=outcome.get("hint") or "Check that the script calls an optimizer's step(), or its model",
        )
