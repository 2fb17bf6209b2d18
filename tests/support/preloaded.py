"""What a process that is forked for many programs loads beforehand, and how its forks load it: in no time.

In a fork ``sys.modules`` does not hold what is set aside; what is imported is found as if it were loaded then.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import marshal
import os
import pkgutil
import sys
import tempfile
import traceback
import types
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

RECORDER = ("gpuledger.collect.session.active", "gpuledger.collect.memory.dispatch")
"""What a recorded program loads of gpuledger."""

MADV_COLLAPSE = 25
"""Source: Linux, include/uapi/asm-generic/mman-common.h; since 6.1."""

COMPILER = ("torch._inductor.compile_fx", "networkx")
"""What torch loads when the first graph is compiled, and its partitioner."""


def modules_of(*packages: str) -> tuple[str, ...]:
    """Return the names of the modules of packages of gpuledger's, without those that are also run by ``-m``.

    ``runpy`` loads these itself, and warns where one is loaded already.
    """
    found = []
    for package in packages:
        loaded = importlib.import_module(f"gpuledger.{package}")
        names = [one.name for one in pkgutil.walk_packages(loaded.__path__, f"{loaded.__name__}.")]
        found += [loaded.__name__, *(name for name in names if not _is_run(name))]
    return tuple(found)


def _is_run(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return bool(spec and spec.origin and '__name__ == "__main__"' in Path(spec.origin).read_text(encoding="utf-8"))


def set_aside(groups: Iterable[Sequence[str]]) -> list[dict[str, types.ModuleType]]:
    """Return the modules of each group after loading them and taking them out of ``sys.modules``."""
    found = []
    known = set(sys.modules)
    for names in groups:
        for name in names:
            with suppress(ModuleNotFoundError):
                importlib.import_module(name)
        new = [name for name in sys.modules if name not in known and not _is_standard(name)]
        known |= set(sys.modules)
        found.append({name: sys.modules[name] for name in new})
    _keep_observed_code()
    for group in found:
        for name in group:
            del sys.modules[name]
    return found


def _is_standard(name: str) -> bool:
    head = name.partition(".")[0]
    return head in sys.stdlib_module_names or head.startswith(("__", "_sysconfigdata"))


class Kept(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what was set aside, and has it loaded by putting it back.

    Who imports one module of a group has all of it, as with a package's own imports; with torch comes NumPy.
    """

    def __init__(self, groups: Sequence[dict[str, types.ModuleType]]) -> None:
        self._group_of = {name: group for group in groups for name in group}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return how a module is loaded that was set aside."""
        kept = self._group_of.get(name, {}).get(name)
        own = None if kept is None else kept.__spec__
        if own is None:
            return None
        spec = importlib.machinery.ModuleSpec(name, self, origin=own.origin)
        spec.submodule_search_locations = own.submodule_search_locations
        spec.has_location = own.has_location
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return the module, its group put back with it."""
        group = self._group_of[spec.name]
        for one in (self._group_of["numpy"] if spec.name == "torch" else {}), group:
            for name, module in one.items():
                if name != spec.name:
                    sys.modules.setdefault(name, module)
        module = group[spec.name]
        self._own = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module as it is."""
        module.__spec__ = self._own


def make_cheap_to_fork() -> None:
    """Set what is loaded apart from what a fork makes of its own.

    Else each collection in a fork would walk, and copy, a million objects. And in pages of 2 MiB, there is 512 times
    less for a fork to note and to let go of; a kernel that has no such pages does without. Torch has hundreds of
    finalizers that take its libraries of operators apart at the end of a process, which comes by 9,000 pages. Where
    Python looks for modules, it has found out for hundreds of folders, each in a page to be written in a fork.
    """
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        place, rights, _, _, file, *_ = line.split()
        begin, end = (int(one, 16) for one in place.split("-"))
        if rights == "rw-p" and file == "0":
            madvise(begin, end - begin, MADV_COLLAPSE)


# -- code of torch's functions with calls of observers in it --------------------------------------------------------


def _keep_observed_code() -> None:
    """Have the recordings of all forks find the code that one of them has compiled for its observers.

    And what is loaded here is marked not to be compiled before there are forks, 2,000 functions. The code of observers
    is found by the code that it replaces: a function that a program has replaced is compiled as ever.
    """
    from gpuledger.collect.adapter import instrument
    from gpuledger.collect.adapter.uncompiled import keep_uncompiled

    keep_uncompiled()
    known = _compiled_in_a_fork()
    compile_observed = instrument._compile_observed

    def find_or_compile(function: types.FunctionType, *, only_fails: bool) -> types.CodeType:
        return known.get((function.__code__, only_fails)) or compile_observed(function, only_fails=only_fails)

    instrument._compile_observed = find_or_compile


def _compiled_in_a_fork() -> dict[tuple[types.CodeType, bool], types.CodeType]:
    """Return the code that a recording puts in the place of torch's own."""
    with tempfile.TemporaryDirectory() as directory:
        told = Path(directory, "told")
        child = os.fork()
        if not child:
            status = 1
            try:
                told.write_bytes(marshal.dumps(_compiled_by_a_recording(Path(directory))))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        found: dict[tuple[types.CodeType, bool], types.CodeType] = marshal.loads(told.read_bytes())
    assert found
    return found


def _compiled_by_a_recording(place: Path) -> dict[tuple[types.CodeType, bool], types.CodeType]:
    import torch

    from gpuledger.collect.adapter import instrument
    from gpuledger.collect.launch.settings import PASSES, RecordSettings
    from gpuledger.collect.session.active import start_recording, stop_recording

    found = {}
    compile_observed = instrument._compile_observed

    def compile_and_keep(function: types.FunctionType, *, only_fails: bool) -> types.CodeType:
        found[function.__code__, only_fails] = observed = compile_observed(function, only_fails=only_fails)
        return observed

    instrument._compile_observed = compile_and_keep
    passes = dict.fromkeys(PASSES, 0)
    settings = RecordSettings(run_directory=place, first_step=2, last_step=2, devices="cpu", passes=passes)
    session = start_recording(settings, place / "rank-0")
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    for _ in range(12):  # the window, and the passes after it
        weight.sum().backward()
        optimizer.step()
    stop_recording(session, "exit")
    return found
