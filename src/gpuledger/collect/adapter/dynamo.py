"""What ``torch.compile`` has compiled, and what it is to leave alone.

While a compiled function runs, Dynamo asks for every Python frame that it meets whether to compile it, once for each
code object. Where :func:`torch.compiler.set_stance` skips guards, torch raises an error instead of asking. So no code
of gpuledger's may be met, and none of torch's that only a recorded program calls.
"""

from __future__ import annotations

import importlib
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch import nn

from gpuledger.collect.adapter.program_objects import attributes_of, is_tensor, items_of

_C = torch._C
RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_(\d+)$")
"""Name of the function with the code after a graph break: that of the function, and the line of the break."""


def never_compile(code: CodeType, *, with_callees: bool = False) -> None:
    """Make ``torch.compile`` run a function's frames eagerly.

    Functions that it calls are still compiled, unless ``with_callees`` is set and this torch can exclude them.
    """
    frames = _C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        of_callees = action.SKIP if with_callees else action.DEFAULT
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, of_callees))
    elif hasattr(frames, "skip_code"):
        frames.skip_code(code)


def skip_as(known: CodeType, code: CodeType) -> None:
    """Make ``torch.compile`` run a function's code eagerly if it does so with the code that this one replaces.

    Without this it would ask for the new code once more. Where ``torch.compiler.set_stance`` skips guards, torch raises
    an error instead of asking.
    """
    asked: Any = getattr(sys.modules.get("torch._dynamo.convert_frame"), "input_codes", ())
    if known in asked and code not in asked and not _cache_entries(known):
        asked.add(code)
        never_compile(code)


def _cache_entries(code: CodeType) -> list[Any]:
    """Return what was compiled of a function's code; nothing if torch does not tell."""
    reader = getattr(_C._dynamo.eval_frame, "_debug_get_cache_entry_list", None)
    return [] if reader is None else list(reader(code))


def as_written(frame: tuple[str, int, str]) -> tuple[str, int, str]:
    """Return file, line and function of a frame, with the program's name of a function that goes on after a break."""
    file, line, name = frame
    while resumed := RESUMED.match(name):
        name = resumed.group(1)
    return file, line, name


def is_imported() -> bool:
    """Return whether the compiler was imported. Without it, nothing was compiled.

    The compiler also traces hooks that call this function, so it reads no counter of the compiler.
    """
    return "torch._dynamo.convert_frame" in sys.modules


def compiled_frames() -> int:
    """Return how many functions ``torch.compile`` has compiled in this process since its last reset."""
    return int(getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COUNTER", 0))


def compilations() -> int:
    """Return how often ``torch.compile`` has compiled a function in this process, also the same one again."""
    counts = getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COMPILE_COUNTER", {})
    return sum(counts.values())


def guards_of_compiled_code() -> Iterator[str]:
    """Yield the guards of everything that ``torch.compile`` has compiled, as text; nothing if torch does not tell."""
    known = getattr(sys.modules.get("torch._dynamo.convert_frame"), "input_codes", None)
    for code in [found() for found in list(getattr(known, "seen", ()))]:
        for entry in () if code is None else _cache_entries(code):
            yield str(getattr(entry, "guard_manager", ""))


_CONSTANT = "_tensor_constant"
"""Begins the name that torch.fx gives to a tensor that a graph contains."""


def is_compilers_own(module: Any) -> bool:
    """Return whether a module is a graph created by torch.compile. Its tensors are the program's, under other names.

    The graph of compiled autograd is compiled as a module is, so that it is inside an ``OptimizedModule``. While
    ``torch.fx`` traces, a plain module has the graph's constants.
    """
    attributes = attributes_of(module)
    children: Any = attributes.get("_modules")
    # Those of torch.jit are no dictionary.
    inner = dict.get(children, "_orig_mod") if issubclass(type(children), dict) else None
    if inner is not None:
        return is_compilers_own(inner)
    if "compile_subgraph_reason" in attributes:
        return True
    graph = attributes.get("_graph")
    if graph is not None and type(module).__name__.startswith("CompiledAutograd"):
        return True
    if type(module) is nn.Module and not children:
        held = [name for name, value in items_of(attributes) if is_tensor(value)]
        return bool(held) and all(name.startswith(_CONSTANT) for name in held)
    code = getattr(graph, "_codegen", None)  # AOTAutograd's graphs take their inputs as one list
    return type(code).__name__ == "_BoxedCodeGen"


class _NotImported:
    """Stands for ``torch._inductor`` until something imports it: without attributes here, complete in other threads."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if threading.get_ident() == self._thread:
            raise AttributeError(name)
        return getattr(importlib.import_module("torch._inductor"), name)


_COMPILER = "torch._inductor"


@contextmanager
def without_importing_compiler() -> Iterator[None]:
    """Read Python stacks without importing ``torch._inductor``.

    To name frames, torch asks ``hasattr(torch, "_inductor")``. In a program without an optimizer, that imports it with
    800 other modules, which takes 1.6 s on two cores. (Creating an optimizer imports it, too.)
    """
    if _COMPILER in sys.modules:
        yield
        return
    attributes, key, placeholder = vars(torch), _COMPILER.rpartition(".")[2], _NotImported()
    attributes[key] = placeholder
    try:
        yield
    finally:
        if attributes.get(key) is placeholder:
            del attributes[key]
