"""Follow programs that use ``torch.compile`` without compiling, and remember where they use it.

What compiled code keeps in memory is approximated by :mod:`.fusion`.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn

from gpuledger.simulate.gpu.fusion import FusedTensors
from gpuledger.simulate.gpu.patches import Patches

COMPILED_BEFORE = "a function that was compiled before"
"""Place of a use for which no call of ``torch.compile`` was seen."""

Used = Callable[[str, str], object]
"""Gets the place of a use of ``torch.compile``, as FILE:LINE, and its mode."""

_CALL = "_compiled_call_impl"
"""Attribute of a module with the function that is called in its place."""
_WITHOUT_FUSION = ("eager", "aot_eager")
"""Backends that run the program's own operators."""
_LIBRARY = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)


def run_uncompiled(patches: Patches, used: Used, fusion: FusedTensors | None = None) -> None:
    """Have ``torch.compile`` return what it is given, and run functions uncompiled that were compiled before.

    ``torch.compiler.is_compiling()`` is True in them, as while the compiler traces them.

    Args:
        patches: Receives the replaced functions of torch.
        used: Called when a model is compiled, and when a compiled function is called. A function that a library
            compiles and nobody calls is not in use.
        fusion: Follows where compiled code begins and ends; None to run it as the program's own operators.
    """

    def in_region(function: Any) -> Any:
        if fusion is None:
            return function

        def call(*args: Any, **kwargs: Any) -> Any:
            with fusion.region((args, kwargs)) as leave:
                found = function(*args, **kwargs)
                leave(found)
            return found

        return call

    def compile_(model: Any = None, *, mode: str | None = None, **how: Any) -> Any:
        if model is None:
            return lambda function: compile_(function, mode=mode, **how)
        if not _is_compiled(**how):
            return model
        place = _callers_place()
        if isinstance(model, nn.Module):
            used(place, mode or "")
            called = weakref.ref(model)  # a model must not keep itself alive
            if fusion is not None and not isinstance(model, torch.jit.ScriptModule):
                call = in_region(lambda *args, **kwargs: _call(called, args, kwargs))
                patches.put(weakref.proxy(model), _CALL, call)
            return model

        fused = in_region(model)

        @wraps(model)
        def uncompiled(*args: Any, **kwargs: Any) -> Any:
            used(place, mode or "")
            return fused(*args, **kwargs)

        return uncompiled

    patches.put(torch, "compile", compile_)
    if fusion is not None:
        _be_traced(patches, fusion)
    patches.put(torch.compiler, "cudagraph_mark_step_begin", lambda: None)  # it looks for CUDA graphs in torch
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None:  # otherwise, nothing was compiled yet
        _stop_compiling(patches, frames, used)


def traced_as_exported() -> bool:
    """Return whether the compiler takes ``torch.compiler.is_exporting()`` to be True, as that of torch 2.11 does.

    That of torch 2.13 does not. Libraries choose by it whether they need a mask of attention, and with a mask, another
    kernel may run.
    """
    return torch.__version__ < "2.13"


def _be_traced(patches: Patches, fusion: FusedTensors) -> None:
    """Let the program see in compiled functions what it sees while they are traced."""

    def put(name: str) -> None:
        plainly = getattr(torch.compiler, name)
        patches.put(torch.compiler, name, lambda: fusion.is_in_function or plainly())

    put("is_compiling")
    if traced_as_exported():
        put("is_exporting")


def _call(called: weakref.ref[nn.Module], args: Any, kwargs: Any) -> Any:
    model = called()
    assert model is not None, "a module that is called exists"
    return model._call_impl(*args, **kwargs)


def _is_compiled(backend: object = "inductor", disable: bool = False, **_how: Any) -> bool:
    """Return whether code is generated with these arguments of ``torch.compile``."""
    return not disable and backend not in _WITHOUT_FUSION and os.environ.get("TORCHDYNAMO_DISABLE") != "1"


def _stop_compiling(patches: Patches, frames: Any, used: Used) -> None:
    """Run compiled functions without Dynamo, as ``torch.compiler.set_stance("force_eager")`` does."""

    def without(callback: object) -> None:
        if callback not in (None, False):  # these run without it anyway
            used(COMPILED_BEFORE, "")

    patches.put(frames, "_callback_from_stance", without)


def _callers_place() -> str:
    """Return the innermost line of the stack that is not torch's, as FILE:LINE."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
