"""Functions of torch, and of asyncio, that gpuledger observes. Each is looked up once.

These are PyTorch's own functions, even if another tool has wrapped them: the wrapper calls them, so its calls are
observed, too. Tested with torch 2.11 to 2.14.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import nn

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.frames import locals_of
from gpuledger.collect.adapter.instrument import CannotInstrumentError

_TORCH_FILES = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

_MODULE_CALL: Callable[..., Any] = getattr(nn.Module, "_wrapped_call_impl", nn.Module.__call__)
_MODULE_CALLS = inspect.unwrap(_MODULE_CALL).__qualname__
"""Name of the code that runs for every module call, observed or not."""
_EVALUATE: Callable[..., Any] = nn.Module.eval
_REGISTER_PARAMETER: Callable[..., Any] = nn.Module.register_parameter
_REGISTER_BUFFER: Callable[..., Any] = nn.Module.register_buffer
_RESTORE: Callable[..., Any] = nn.Module.__setstate__
_BACKWARD: Callable[..., Any] = torch.autograd.backward
_GRAD: Callable[..., Any] = torch.autograd.grad
_ENGINE: Callable[..., Any] = torch.autograd.graph._engine_run_backward
_END_OF_TIMED: Callable[..., Any] = torch.autograd.profiler.record_function.__exit__
_OPTIMIZER_INIT: Callable[..., Any] = torch.optim.Optimizer.__init__
_ENTER_AUTOCAST: Callable[..., Any] = torch.amp.autocast_mode.autocast.__enter__
_RECORD_MEMORY_HISTORY: Callable[..., Any] = torch.cuda.memory._record_memory_history


ASKED_FIRST = "is_fx_symbolic_tracing"
"""Name of the function that runs at the beginning of each call of a compiled function.

Observed, because Dynamo's own function around the call refers to variables of a function around it.
"""
_WRAPPER = "compile_wrapper"
"""Name of Dynamo's function around each call of a compiled function."""


def torchs_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch's own function from inside the wrappers that other code has put around it.

    Raises:
        CannotInstrumentError: no function of torch is found inside the wrappers.
    """
    found: Callable[..., Any] = inspect.unwrap(function)
    code = getattr(found, "__code__", None)
    if code is None or not code.co_filename.startswith(_TORCH_FILES):
        raise CannotInstrumentError(f"{function!r} is no function of PyTorch's")
    return found


def own_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a library's own function from inside the wrappers that other code has put around it.

    Raises:
        CannotInstrumentError: it has no Python code.
    """
    found: Callable[..., Any] = inspect.unwrap(function)
    if getattr(found, "__code__", None) is None:
        raise CannotInstrumentError(f"{function!r} is no Python function")
    return found


def module_call() -> Callable[..., Any]:
    """Return the function that runs for every module call."""
    return torchs_own(_MODULE_CALL)


def evaluate() -> Callable[..., Any]:
    """Return ``nn.Module.eval``; its parameter is the module."""
    return torchs_own(_EVALUATE)


def register_parameter() -> Callable[..., Any]:
    """Return ``nn.Module.register_parameter``; its parameters are the module, a name and a parameter."""
    return torchs_own(_REGISTER_PARAMETER)


def register_buffer() -> Callable[..., Any]:
    """Return ``nn.Module.register_buffer``; its first parameters are the module, a name and a tensor."""
    return torchs_own(_REGISTER_BUFFER)


def restore_module() -> Callable[..., Any]:
    """Return the function that gives a module what was pickled or copied of it; its first parameter is the module."""
    return torchs_own(_RESTORE)


def convert_module() -> Callable[..., Any]:
    """Return the function that ``to()``, ``half()`` and others call for a module and each one below it.

    That of a simulated GPU is not PyTorch's.

    Raises:
        CannotInstrumentError: this torch has no such function.
    """
    return own_function(getattr(nn.Module, "_apply", len))


def backward() -> Callable[..., Any]:
    """Return ``torch.autograd.backward``; its first parameter is ``tensors``."""
    return torchs_own(_BACKWARD)


def is_in_function() -> bool:
    """Return whether this thread is inside an ``autograd.Function`` that computes its result, which is an operator."""
    apply: Any = torch.autograd.Function.apply
    written_in_python = getattr(apply, "__code__", None)  # before torch 2.14
    inside = {id(written_in_python)} if written_in_python is not None else _codes_of_functions()
    return _is_running(lambda code: id(code) in inside)


def _is_running(is_wanted: Callable[[CodeType], bool]) -> bool:
    """Return whether this thread is inside a function with wanted code."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not is_wanted(frame.f_code):
        frame = frame.f_back
    return frame is not None


def _codes_of_functions() -> set[int]:
    """Return the ``id`` of the code of every ``forward`` and ``setup_context`` of an ``autograd.Function``."""
    codes, waiting = set[int](), [torch._C._FunctionBase]
    while waiting:
        kind = waiting.pop()
        waiting += type.__subclasses__(kind)
        for name in ("forward", "setup_context"):
            method = vars(kind).get(name)
            function = method.__func__ if type(method) is staticmethod else method
            if type(function) is FunctionType:
                codes.add(id(function.__code__))
    return codes


def grad() -> Callable[..., Any]:
    """Return ``torch.autograd.grad``; its first parameter is ``outputs``."""
    return torchs_own(_GRAD)


def engine() -> Callable[..., Any]:
    """Return the function that runs the nodes of a graph in autograd's engine, for both of the above."""
    return torchs_own(_ENGINE)


def cuda_graph() -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Return the functions that begin and end the capture of a CUDA graph, and that replay it, each with its graph.

    Raises:
        CannotInstrumentError: they are not functions of PyTorch's.
    """
    graph = torch.cuda.CUDAGraph
    return torchs_own(graph.capture_begin), torchs_own(graph.capture_end), torchs_own(graph.replay)


def compiled_call() -> Callable[..., Any]:
    """Return a function without parameters that runs at the beginning of each call of a compiled function.

    There, no tensor of the call was used yet, and Dynamo compiles nothing. Other code calls the function as well.

    Raises:
        CannotInstrumentError: it is not a function of PyTorch's.
    """
    return torchs_own(getattr(torch.fx._symbolic_trace, ASKED_FIRST, len))


def outermost_compiled_call() -> int | None:
    """Return a number of the compiled function that is called, inside an observer of :func:`compiled_call`.

    None if other code has called that function, or if the call is inside a module, another compiled function or
    backward.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != ASKED_FIRST:
        frame = frame.f_back
    wrapper = None if frame is None else frame.f_back
    if wrapper is None or wrapper.f_code.co_name != _WRAPPER:
        return None
    if torch.compiler._is_compiling_flag or torch_private.is_in_backward():
        return None
    frame = wrapper.f_back
    while frame is not None:
        if frame.f_code is wrapper.f_code or frame.f_code.co_qualname == _MODULE_CALLS:
            return None
        frame = frame.f_back
    return id(wrapper.f_locals.get("callback"))


def is_inside_call() -> bool:
    """Return whether this thread is inside a call of a module, or inside backward."""
    return torch_private.is_in_backward() or _is_running(lambda code: code.co_qualname == _MODULE_CALLS)


def modules_in_calls() -> list[Any]:
    """Return the modules of the calls that this thread is inside, outermost first. One that cannot be read is None."""
    found = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_qualname == _MODULE_CALLS:
            found.append(locals_of(frame).get("self"))
        frame = frame.f_back
    return found[::-1]


def enter_autocast() -> Callable[..., Any]:
    """Return the function that starts autocast; its parameter is the context manager."""
    return torchs_own(_ENTER_AUTOCAST)


def record_memory_history() -> Callable[..., Any]:
    """Return ``torch.cuda.memory._record_memory_history``."""
    return torchs_own(_RECORD_MEMORY_HISTORY)


def take_snapshot() -> Callable[..., Any]:
    """Return ``torch.cuda.memory._snapshot``."""
    return torchs_own(torch.cuda.memory._snapshot)


def list_segments() -> Callable[..., Any]:
    """Return ``torch.cuda.memory.memory_snapshot``; its result is a list of segments."""
    return torchs_own(torch.cuda.memory.memory_snapshot)


def set_memory_tags() -> Callable[..., Any] | None:
    """Return ``torch.cuda.memory._set_memory_metadata``; None if this torch has no such Python function."""
    function = getattr(torch.cuda.memory, "_set_memory_metadata", None)
    return None if function is None else torchs_own(function)


def optimizer_init() -> Callable[..., Any]:
    """Return ``torch.optim.Optimizer.__init__``, which the constructor of each optimizer calls."""
    return torchs_own(_OPTIMIZER_INIT)


def end_of_timed() -> Callable[..., Any]:
    """Return what runs after each block that PyTorch times, such as an optimizer's step.

    Its parameters are those of ``__exit__``, the second one of which is an exception.
    """
    return torchs_own(_END_OF_TIMED)


def is_tracing() -> bool:
    """Return whether ``torch.compile``, ``torch.export`` or ``torch.jit.trace`` is tracing the current code."""
    return bool(torch.compiler.is_compiling() or torch._C._get_tracing_state())
