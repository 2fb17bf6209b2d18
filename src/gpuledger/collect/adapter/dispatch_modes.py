"""Dispatch modes of a thread: which handle its operators, and adding and removing one.

A ``torch.inference_mode`` block saves on entry which operators dispatch to Python, and restores that on exit. If
gpuledger's mode was active on entry and is removed before the exit, the restored state sends every operator to a mode
that no longer exists ("Hit Python dispatch key but no arguments had PyInterpreter"). So the exit of each block that is
open when the mode is removed is observed, and the state corrected there.

A compiled function restores the state in the same way. Nothing that can be observed runs at its end, so a mode is not
removed inside of it. It can be removed at the beginning of the call, where the state was not saved yet.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpuledger.collect.adapter.instrument import CannotInstrumentError, Observation
from gpuledger.collect.adapter.observer import Absorbs, Observer
from gpuledger.collect.adapter.torch_entrances import ASKED_FIRST, torchs_own
from gpuledger.collect.adapter.torch_private import find, is_in_backward

_C = torch._C
_Result = TypeVar("_Result")
OWN_THREAD = "gpuledger"
"""Beginning of the names of threads that are not the program's."""
_COMPILED_CALL = "torch/_dynamo/eval_frame.py"
"""End of the file name of the frames that call a compiled function."""
_MODULE_CALL = "OptimizedModule.__call__"
"""The function of that file that calls the hooks of a compiled module, and then its compiled function."""


class CompilerNeutralMode(TorchDispatchMode):
    """A dispatch mode that does not affect ``torch.compile``."""

    supports_higher_order_operators = True
    """Without it, torch refuses operators such as ``torch.cond`` while the mode is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not annotated it

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tell torch that compiled code needs no fallback because of this mode."""
        return True


class InferenceBlocks:
    """Observes the exits of the ``inference_mode`` blocks that this thread is in, until the outermost has ended.

    Args:
        absorbs: Handles an exception raised in gpuledger's code.
    """

    def __init__(self, absorbs: Absorbs) -> None:
        self._thread = threading.get_ident()
        end = torchs_own(torch.inference_mode.__exit__)
        observer = Observer(lambda *_: True, self._left, self._failed, absorbs=absorbs)
        self._observation: Observation | None = Observation(end, observer)

    def _left(self, _token: bool, _result: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        bypass_python_without_modes()
        observation = self._observation
        if observation is not None and not torch.is_inference_mode_enabled():
            self._observation = None
            observation.remove()

    def _failed(self, token: bool) -> None:
        self._left(token, None)


def may_take_out_mode(absorbs: Absorbs) -> bool:
    """Return whether a dispatch mode can be removed now. If blocks are open, their exits are observed from now on."""
    if _is_in_compiled_call(sys._getframe()):
        return False
    if not torch.is_inference_mode_enabled():
        return True
    try:
        InferenceBlocks(absorbs)
    except CannotInstrumentError:
        return False
    return True


def may_enter_mode() -> bool:
    """Return whether a dispatch mode can be entered now. It would not be seen in, nor outlive, a compiled function."""
    return not _is_in_compiled_call(sys._getframe())


def run_outside_modes(function: Callable[[], _Result]) -> _Result:
    """Return what ``function`` returns. No dispatch mode and no ``__torch_function__`` sees its operators.

    Modes are those of a thread. If torch cannot disable them, the function runs in a thread of its own.
    """
    disabled = find("_disable_current_modes")
    if disabled is None:
        with ThreadPoolExecutor(1, thread_name_prefix=OWN_THREAD) as threads:
            return threads.submit(_without_functions, function).result()
    with disabled():
        return _without_functions(function)


def _without_functions(function: Callable[[], _Result]) -> _Result:
    with _C.DisableTorchFunction():
        return function()


def traces_shapes() -> bool:
    """Return whether this thread computes the shapes of tensors alone, as while a program is compiled.

    False if torch does not tell.
    """
    find, keys = getattr(_C, "_get_dispatch_mode", None), getattr(_C, "_TorchDispatchModeKey", None)
    return find is not None and keys is not None and find(keys.FAKE) is not None


def _is_in_compiled_call(frame: FrameType | None) -> bool:
    called = ""
    while frame is not None:
        code = frame.f_code
        begins = called == ASKED_FIRST
        if code.co_filename.endswith(_COMPILED_CALL) and code.co_qualname != _MODULE_CALL and not begins:
            return True
        called, frame = code.co_name, frame.f_back
    return False


_MODE_FLAGS = (
    "old_dispatch_mode_flags",
    "old_non_infra_dispatch_mode_flags",
    "old_without_ignore_compile_internals_dispatch_mode_flags",
)
"""State that a TorchDispatchMode saves on entry and restores on exit."""


def has_dispatch_mode() -> bool:
    """Return whether any dispatch mode is active in the calling thread."""
    return bool(_C._len_torch_dispatch_stack())


def is_in_transform() -> bool:
    """Return whether the calling thread is inside a function that ``torch.func`` transforms, such as with ``vmap``."""
    functorch = getattr(_C, "_functorch", None)
    return functorch is not None and functorch.peek_interpreter_stack() is not None


def innermost_dispatch_mode() -> Any:
    """Return the dispatch mode that handles the calling thread's operators; None without one."""
    count = _C._len_torch_dispatch_stack()
    return _C._get_dispatch_stack_at(count - 1) if count else None


def innermost_function_mode() -> Any:
    """Return the mode that handles torch's functions where the calling thread calls them; None without one."""
    count = _C._len_torch_function_stack()
    return _C._get_function_stack_at(count - 1) if count else None


def is_handling_operator(mode: Any) -> bool:
    """Return whether a dispatch mode that was entered handles an operator: torch has popped it meanwhile."""
    return all(_C._get_dispatch_stack_at(place) is not mode for place in range(_C._len_torch_dispatch_stack()))


def bypass_python_without_modes() -> None:
    """Stop sending this thread's operators to Python if no dispatch mode is active."""
    if not has_dispatch_mode():
        for key in (_C.DispatchKey.Python, _C.DispatchKey.PythonTLSSnapshot):
            _C._dispatch_tls_set_dispatch_key_included(key, False)


def send_to_python(mode: Any) -> None:
    """Send this thread's operators to a dispatch mode again that was entered inside a ``torch.inference_mode`` block.

    At its end, such a block restores which operators dispatch to Python.
    """
    if not _C._dispatch_tls_is_dispatch_key_included(_C.DispatchKey.Python) and innermost_dispatch_mode() is mode:
        for key in (_C.DispatchKey.Python, _C.DispatchKey.PythonTLSSnapshot):
            _C._dispatch_tls_set_dispatch_key_included(key, True)


def push_dispatch_mode(mode: Any) -> None:
    """Add a TorchDispatchMode to this thread's stack of modes, and leave the state of the process as it is.

    ``__enter__`` also sets flags that all threads share, and ``__exit__`` restores them: two threads with modes that
    end in another order would leave them set.
    """
    from torch.utils import _python_dispatch

    _python_dispatch._push_mode(mode)


def take_out_pushed_mode(mode: Any) -> bool:
    """Remove a mode that was pushed. Return whether it was found: it is not while it handles an operator."""
    if is_in_backward():
        return False
    from torch.utils import _python_dispatch

    above = _modes_above(mode)
    if above is None:
        return False
    above = [_python_dispatch._pop_mode() for _ in (mode, *above)][:-1]
    for other in reversed(above):
        _python_dispatch._push_mode(other)
    return True


def _modes_above(mode: Any) -> list[Any] | None:
    """Return the modes above one in this thread's stack, the next one first; None if it is not in the stack."""
    from torch.utils import _python_dispatch

    stack = _python_dispatch._get_current_dispatch_mode_stack()
    place = next((number for number, one in enumerate(stack) if one is mode), None)
    return None if place is None else stack[place + 1 :]


def take_out_dispatch_mode(mode: Any) -> bool:
    """Remove a TorchDispatchMode from this thread's stack, even below other modes. Return whether it is not there now.

    Not possible while the mode handles an operator: torch has popped it and pushes it again afterwards. Not possible
    inside backward either: autograd restores the earlier stack of modes when it ends.
    """
    if is_in_backward():
        return False
    from torch.utils import _python_dispatch

    above = _modes_above(mode)
    if above is None:  # entered, but not by this thread or handling an operator; or not entered any more
        return not any(getattr(mode, name, None) for name in _MODE_FLAGS)
    if above:  # the mode above must restore the state that the removed mode would have restored
        for name in _MODE_FLAGS:
            ours, theirs = getattr(mode, name, None), getattr(above[0], name, None)
            if ours and theirs:
                ours[-1], theirs[-1] = theirs[-1], ours[-1]
    taken = [_python_dispatch._pop_mode() for _ in above]
    try:
        mode.__exit__(None, None, None)
    finally:
        for other in reversed(taken):
            _python_dispatch._push_mode(other)
    return True
