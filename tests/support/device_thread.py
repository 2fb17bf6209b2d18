"""Backward in a thread without Python frames, as autograd runs it for CUDA tensors, with CPU tensors."""

from __future__ import annotations

import _thread
import operator
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.autograd import graph
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


class _Engine:
    """Autograd's engine, but each backward pass runs in a new thread while the calling one waits.

    The thread begins with the caller's dispatch modes, as autograd's own threads do, and calls functions of C only.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        ended = _thread.allocate_lock()
        ended.acquire()
        modes = [partial(torch._C._push_on_torch_dispatch_stack, mode) for mode in _get_current_dispatch_mode_stack()]
        calls = [*modes, partial(self._engine.run_backward, *args, **kwargs), ended.release]
        results: list[Any] = []
        call: Any = operator.call
        _thread.start_new_thread(deque, (map(results.append, map(call, calls)), 0))
        if not ended.acquire(timeout=600):
            raise RuntimeError("backward raised an exception in its thread, or takes longer than ten minutes")
        return results[len(modes)]


@contextmanager
def backward_in_another_thread() -> Iterator[None]:
    """Run backward passes in threads without Python frames."""
    variable: Any = graph.Variable  # type: ignore[attr-defined]  # the module imports it
    engine = variable._execution_engine
    variable._execution_engine = _Engine(engine)
    try:
        yield
    finally:
        variable._execution_engine = engine
