"""Run each program bare and recorded, and again with an error planted in each place it came through.

A process that has imported torch is forked for every run, so each begins alike. Reads orders as JSON from the command
line, prints what it found as JSON. Planted as it is imported: a process of its own.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import inspect
import json
import operator
import os
import pkgutil
import re
import shutil
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import planted
from planted_programs import PROGRAMS, Program
from preloaded import make_cheap_to_fork

os.environ["OMP_NUM_THREADS"] = "1"
ORDERS: dict[str, Any] = json.loads(sys.argv[1])
planted.plant(only_first=not ORDERS["every_statement"])

import torch  # noqa: E402
import torch._dynamo  # noqa: E402
import torch.distributed  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.optim import optimizer as optimizers  # noqa: E402
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack  # noqa: E402

from gpuledger.collect.adapter import instrument, uncompiled, user_profiler  # noqa: E402
from gpuledger.collect.attribution import scopes  # noqa: E402
from gpuledger.collect.launch import bootstrap  # noqa: E402
from gpuledger.collect.session import active  # noqa: E402
from gpuledger.errors import GpuLedgerError  # noqa: E402
from gpuledger.model.journal.reading import read_journal  # noqa: E402
from gpuledger.model.run_writer import RunWriter, new_manifest  # noqa: E402

# Before any fork: what a child imports first has no number here.
for _room in ("collect", "model", "files", "cards", "processes"):
    _package = importlib.import_module(f"gpuledger.{_room}")
    for _found in pkgutil.walk_packages(_package.__path__, f"{_package.__name__}."):
        if "bootstrap." not in _found.name:
            importlib.import_module(_found.name)

import asyncio.events  # noqa: E402

OBSERVED = {
    "module": torch.nn.Module._wrapped_call_impl,
    "backward": torch.autograd.backward,
    "grad": torch.autograd.grad,
    "history": torch.cuda.memory._record_memory_history,
    "buckets": DistributedDataParallel._ddp_init_helper,
    "task": asyncio.events.Handle._run,
    **{kind.__qualname__: vars(kind)["__init__"] for kind in user_profiler.WATCHED},
}
PLAIN = {name: function.__code__ for name, function in OBSERVED.items()}
REDUCER: Any = vars(torch.distributed)["Reducer"]
REBUILD = REDUCER._rebuild_buckets


def phase() -> str:
    """Return how far the recording is; runs nothing of gpuledger's, so it reads attributes, private ones too."""
    session = active._session
    if session is None or not hasattr(session, "_later"):
        return "start"
    if session.guard.ended:
        return "ended"
    if session.window is None:
        return "before"
    if session.window.is_open:
        return "window"
    if session._later._time_pass.is_open:
        return "time"
    return "unprofiled" if session.window.was_opened else "before"


def installed() -> dict[str, Any]:
    """Return what a recording puts into a process, and what it takes with it."""
    return {
        "exchanged": sorted(name for name, code in PLAIN.items() if OBSERVED[name].__code__ is not code),
        "rebuild": REDUCER._rebuild_buckets is REBUILD,
        "hooks before": len(optimizers._global_optimizer_pre_hooks),
        "hooks after": len(optimizers._global_optimizer_post_hooks),
        "modes": [type(mode).__name__ for mode in _get_current_dispatch_mode_stack()],
        "listens": scopes._listener is not None or scopes._runner is not None,
        "profiles": bool(torch._C._autograd._profiler_enabled()),
        "environment": {name: value for name, value in os.environ.items() if not name.startswith("GPULEDGER")},
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "recursion": sys.getrecursionlimit(),
        "finders": len(sys.meta_path),
    }


def _bootstrap() -> dict[str, Any]:
    """Return what stands in the sitecustomize that Python loads below ``gpuledger run``."""
    place = Path(bootstrap.bootstrap_directory()) / "sitecustomize.py"
    names: dict[str, Any] = {"__file__": str(place), "__name__": "bootstrap"}
    with suppress(ImportError):  # there is no other sitecustomize
        exec(compile(place.read_text(encoding="utf-8"), str(place), "exec"), names)
    return names


BOOTSTRAP = _bootstrap()


_LET_GO_S = 0.02
"""Time in which threads of gloo let go of their last works. They need the interpreter for that, because a recorded
step was in a mode of torch's dispatcher. A collection that holds it and destroys their process group waits for them.
"""


def _run(program: Program, code: Any, target: tuple[int, str] | None, *, recorded: bool) -> dict[str, Any]:
    """Run a program in this process, which ends with it."""
    os.environ |= {"GPULEDGER_RUN": str(Path("run.ledger").absolute()), **program.environment}
    RunWriter.open(Path("run.ledger"), new_manifest("run.ledger", ("train.py",), {}))
    exec(program.before, {})
    status = 0
    if recorded:
        planted.PLANTS.target, planted.PLANTS.phase = target, phase
        BOOTSTRAP["_start"]()
    try:
        exec(code, {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        status = 1
    ended = installed()
    atexit._run_exitfuncs()
    time.sleep(_LET_GO_S)
    gc.collect()
    hung = planted.PLANTS.target is not None and planted.PLANTS.phase is not None
    planted.PLANTS.phase = None
    return {
        "status": status,
        "ended": ended,
        "exited": installed(),
        "reached": list(planted.PLANTS.reached),
        "observed": [
            (function.__module__, function.__qualname__, only_fails)
            for function, site in instrument._sites.items()
            for only_fails in site._codes
        ],
        "raised": not hung,
    }


def compile_observed(names: list[tuple[str, str, bool]]) -> None:
    """Compile functions of torch for observers, and mark ours, as a recording does, once for all forked processes."""
    uncompiled.keep_uncompiled()
    for module, qualname, only_fails in names:
        with suppress(AttributeError):  # a function of a function
            function = inspect.unwrap(operator.attrgetter(qualname)(sys.modules.get(module)))
            instrument._site_of(function, only_fails=only_fails)


KINETO_TIME = re.compile(r"(?<=USDT:)[-0-9]+ [:0-9]+ [:0-9]+")
"""Kineto says on stderr when its profiler began, and in which process."""


def _notes(directory: Path) -> list[str]:
    """Return what a run says of itself, before and after posting."""
    notes = [line for place in directory.glob("**/notes/*.txt") for line in place.read_text().splitlines()]
    for journal in directory.glob("**/journal"):
        with suppress(GpuLedgerError, OSError):
            notes += read_journal(journal).notes
    return notes


def forked(
    program: Program, code: Any, target: tuple[int, str] | None = None, *, recorded: bool, compiled: bool = False
) -> dict[str, Any]:
    """Return how a program ended in a process of its own.

    ``compiled``: functions may have been compiled for observers, and ours have been marked, before it began.
    """
    directory = Path(tempfile.mkdtemp(prefix="planted-"))
    child = os.fork()
    if not child:
        try:
            os.chdir(directory)
            if not compiled:
                instrument._sites.clear()
                uncompiled._marked.clear()
            for number, name in ((1, "stdout"), (2, "stderr")):
                place = os.open(name, os.O_WRONLY | os.O_CREAT)
                os.dup2(place, number)
                os.close(place)
            result = _run(program, code, target, recorded=recorded)
            sys.stdout.flush()
            sys.stderr.flush()
            Path("result.json").write_text(json.dumps(result), encoding="utf-8")
        finally:
            os._exit(0)
    _, how = os.waitpid(child, 0)
    found: dict[str, Any] = {"signal": how}
    if (directory / "result.json").exists():
        found |= json.loads((directory / "result.json").read_text(encoding="utf-8"))
    found["stdout"], found["stderr"] = (
        KINETO_TIME.sub("", (directory / name).read_text()) for name in ("stdout", "stderr")
    )
    found["notes"] = _notes(directory)
    shutil.rmtree(directory)
    return found


_ROOM = "gpuledger.collect.attribution"
_TRACKER = f"{_ROOM}.scope_tracker"
UNGUARDED = {
    "gpuledger.model.shown": "The program imports it with gpuledger.scope, recorded or not.",
    "gpuledger._lazy": "The program imports gpuledger.scope through it, recorded or not.",
    f"{_ROOM}.scopes": "The program calls it itself, recorded or not; what records is asked below a guard.",
    (
        "gpuledger.collect.memory.dispatch_mode",
        "OperatorMode.__torch_dispatch__",
    ): "Its first line is the program's own operator.",
    ("gpuledger.collect.passes.line_marks", "_LineMode.__torch_dispatch__"): "Runs the program's own operator.",
    ("gpuledger.collect.passes.line_marks", "_FunctionMode.__torch_function__"): "Runs the program's own function.",
    (
        "gpuledger.collect.attribution.communication",
        "CommunicationMarks._wrapped.marked",
    ): "Only calls what is guarded.",
    (
        _TRACKER,
        "ScopeTracker._make_runner.run",
    ): "Beside guarded parts calls the program's function, and leaves its scope.",
    (_TRACKER, "_run_told"): "Calls the program's function, and leaves its scope.",
    ("gpuledger.collect.adapter.guard", "forget_own_frames"): "The guard itself, with an error of the program in hand.",
    ("gpuledger.collect.adapter.guard", "_without_own_frames"): "Its caller leaves the traceback as it is.",
    ("gpuledger.collect.adapter.guard", "is_our_file"): "The guard itself, with an error of the program in hand.",
    (
        "gpuledger.collect.adapter.dispatch_modes",
        "InferenceBlocks._left",
    ): "Puts right what would break the program's operators.",
    (
        "gpuledger.collect.memory.thread_modes",
        "_Holder.__del__",
    ): "Asks whether Python ends, and calls what is guarded.",
    ("gpuledger.collect.launch.ranks", "_end_begun"): "At exit: goes through a list, and what it calls is suppressed.",
}
"""Modules, and functions of modules, in which an error reaches the program, and why none can be there."""

COMPARED = ("signal", "status", "stdout", "stderr", "ended", "exited")


def differences(bare: dict[str, Any], other: dict[str, Any], plain: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what is not as it is bare; at the program's end it may be as after a recording that ended well."""
    wrong = {key: _apart(bare.get(key), other.get(key)) for key in COMPARED if bare.get(key) != other.get(key)}
    if plain is not None and other.get("ended") == plain["ended"]:
        wrong.pop("ended", None)
    return wrong


def _apart(one: Any, other: Any) -> Any:
    """Return two values, of dictionaries only what differs."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: [one.get(key), other.get(key)] for key in {**one, **other} if one.get(key) != other.get(key)}
    return [one, other]


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a program before errors are planted.

    In slots, because recordings search the variables of all running functions for tensors, and look into no slots.
    """

    bare: dict[str, Any]
    plain: dict[str, Any]
    chosen: list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Errors after which something was different, by what was expected; in slots as above."""

    failures: list[dict[str, Any]] = field(default_factory=list)
    unguarded: list[dict[str, Any]] = field(default_factory=list)
    unreached: list[dict[str, Any]] = field(default_factory=list)


def walk(name: str, walked: set[tuple[int, str]], orders: dict[str, Any]) -> dict[str, Any]:
    """Return what became of each place of a program, or of one in so many, or of those of some modules.

    ``unreached``: places whose turn depends on the time that something takes, and did not come again in four runs.
    """
    (part, parts), every_statement, modules = orders["share"], orders["every_statement"], orders.get("modules")
    program = PROGRAMS[name]
    code = compile(program.source, f"{name}.py", "exec")
    bare, plain = forked(program, code, recorded=False), forked(program, code, recorded=True)
    compile_observed(plain.get("observed", []))
    reached = [(number, at) for number, at in plain.get("reached", [])]
    chosen = [
        one for one in reached if one not in walked and (every_statement or planted.PLANTS.places[one[0]].is_first)
    ]
    walked.update(chosen)
    chosen = [one for one in chosen if not modules or planted.PLANTS.places[one[0]].module in modules][part::parts]
    known, outcome = _Known(bare, plain, chosen), _Outcome()
    del bare, plain, reached, chosen
    for number, at in known.chosen:
        found: dict[str, Any] = {}
        for compiled in (True, False, False, False):
            if not found.get("raised"):
                found = forked(program, code, (number, at), recorded=True, compiled=compiled)
        place = planted.PLANTS.places[number]
        where = {"module": place.module, "function": place.function, "line": place.line, "phase": at}
        wrong = differences(known.bare, found, known.plain)
        if not found.get("raised"):
            outcome.unreached.append(where)
        elif not any("planted" in note for note in found["notes"]):
            wrong["notes"] = found["notes"]
        if wrong:
            expected = place.module in UNGUARDED or (place.module, place.function) in UNGUARDED
            (outcome.unguarded if expected else outcome.failures).append({**where, "wrong": wrong})
    return {
        "program": name,
        "status": known.bare["status"],
        "without": differences(known.bare, known.plain, known.plain),
        "notes": known.plain["notes"],
        "reached": len(known.plain.get("reached", [])),
        "walked": len(known.chosen),
        "phases": sorted({at for _, at in known.chosen}),
        **asdict(outcome),
    }


def main() -> None:
    """Walk as the JSON on the command line says."""
    warnings.simplefilter("ignore")
    for torchs in weakref.finalize._registry:  # type: ignore[attr-defined] # its operators need not go before the process does
        torchs.atexit = False
    make_cheap_to_fork()
    walked: set[tuple[int, str]] = set()
    for name in ORDERS["programs"] or PROGRAMS:
        result = walk(name, walked, ORDERS)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
