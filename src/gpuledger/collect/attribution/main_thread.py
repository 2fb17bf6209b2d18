"""Call a function in the main thread, between two instructions of the program and outside torch's operators."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_waiting: list[Callable[[], None]] = []


def _call_waiting(_: int | None) -> int:
    ready, _waiting[:] = _waiting[:], []
    for function in ready:
        function()
    return 0


_CALL_WAITING = _FUNCTION(_call_waiting)


def call_soon(function: Callable[[], None]) -> None:
    """Call ``function`` in the main thread soon. It must not raise. If Python's queue is full, it is not called."""
    _waiting.append(function)
    if ctypes.pythonapi.Py_AddPendingCall(_CALL_WAITING, None):
        _waiting.remove(function)
