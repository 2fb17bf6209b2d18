"""Kineto, the profiler inside PyTorch, used so that the program notices nothing of it.

Names private functions of PyTorch and of the library, as :mod:`.torch_private` does for the rest.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gpuledger.collect.adapter import torch_private

TEARDOWN, LOG_LEVEL = "TEARDOWN_CUPTI", "KINETO_LOG_LEVEL"
"""Variables by which Kineto knows whether to take CUPTI out again, and from what level on it writes to stderr."""

SILENT = 99
"""A level above all that Kineto writes."""

REGISTERED_THREAD = threading.get_ident()
"""The thread that has loaded torch, and this module right after it: Kineto complains where another begins it."""

NOT_BEGUN, ERRORS = 0, 4
"""Kineto's level before its first use in a process, and the one that torch then gives it where no variable does."""


GOING_CALLS, GOING_S = 20, 0.1
"""How often, and for how long, a GPU is asked something after the pass, for CUPTI to go in one of these calls."""


@contextmanager
def _variables(**values: str) -> Iterator[None]:
    """Set variables for libraries, where the program has not; ``os.environ`` does not show them."""
    ours = {name: value for name, value in values.items() if name not in os.environ}
    for name, value in ours.items():
        os.putenv(name, value)
    try:
        yield
    finally:
        for name in ours:
            os.unsetenv(name)


def _library() -> ctypes.CDLL:
    """Return the library that Kineto is part of.

    Raises:
        OSError: torch keeps it elsewhere.
    """
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


def _kineto_level() -> ctypes.c_int:
    """Return the variable in which Kineto keeps its level; one of no use where torch does not show it."""
    try:
        return ctypes.c_int.in_dll(_library(), "_ZN9libkineto6Logger14severityLevel_E")
    except (OSError, ValueError):
        return ctypes.c_int()


def _config_loader() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return Kineto's functions that give its loader of settings, and end that one's thread; None where not shown."""
    try:
        library = _library()
        instance = library._ZN9libkineto12ConfigLoader8instanceEv
        stop_thread = library._ZN9libkineto12ConfigLoader10stopThreadEv
    except (OSError, AttributeError):
        return None
    instance.restype, instance.argtypes = ctypes.c_void_p, []
    stop_thread.restype, stop_thread.argtypes = None, [ctypes.c_void_p]
    return instance, stop_thread


def can_end_thread() -> bool:
    """Return whether the thread that Kineto starts can be ended again.

    It waits for settings from a daemon. Where it stays, a child that the program forks hangs when it exits, as it waits
    for a thread that it does not have.
    """
    return _config_loader() is not None


def _end_thread() -> None:
    """End the thread that Kineto has started; a later profiler works without it."""
    loader = _config_loader()
    if loader is not None:
        instance, stop_thread = loader
        stop_thread(instance())


def _see_cupti_off() -> None:
    """Give CUPTI the calls in which it goes: a thread of Kineto's waits for them, and then takes it out.

    Left to the program, it would go in one of its next calls, and with it what a profiler of its own records there.
    """
    for _ in range(GOING_CALLS):
        if torch.cuda.is_current_stream_capturing():
            return
        torch.cuda.current_stream().query()
        time.sleep(GOING_S / GOING_CALLS)


class Profiler:
    """Kineto, recording from construction to :meth:`stop`: host operators, and kernels where there is a GPU.

    Where there is one, operators tell the shapes of their inputs as well; Kineto copies these, and keeps no tensor.
    CUPTI is torn down at the end, or it would go on slowing every launch; not where there are CUDA graphs, which can
    crash then (torch.profiler leaves it in place for the same reason). Kineto's own lines are silenced until the end:
    it reads the variable once, which would silence the program's own profiler, too.
    """

    def __init__(self) -> None:
        self._teardown = "0" if torch_private.holds_graphs() else "1"
        self._puts_back: Callable[..., Any] | None = None
        self._level = _kineto_level()
        before = self._level.value
        self._is_first = before == NOT_BEGUN
        device = "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else None
        self._profile = torch.autograd.profiler.profile(
            use_kineto=True, use_device=device, record_shapes=device is not None
        )
        self._level_after = before
        try:
            with _variables(**{TEARDOWN: self._teardown, LOG_LEVEL: str(SILENT)}):
                self._profile._prepare_trace()
                chosen = self._level.value if LOG_LEVEL in os.environ else ERRORS
                self._level_after = chosen if before == NOT_BEGUN else before
                self._level.value = SILENT
                self._profile._start_trace()
        except BaseException:
            self.stop(wait=False)
            raise

    def leave_out_operators(self) -> bool:
        """Record kernels alone from here on, in this thread; return False where there is no GPU, or torch cannot.

        Kineto's own way, ``toggle_collection_dynamic``, writes a warning to the program's stderr.
        """
        enable = torch_private.find("_enable_record_function")
        if enable is None or self._profile.use_device is None:
            return False
        enable(False)
        self._puts_back = enable
        return True

    def stop(self, *, wait: bool) -> list[Any]:
        """Return Kineto's events. All streams of the device are waited for, or else the caller has waited."""
        if self._puts_back is not None:
            self._puts_back(True)
        on_card = self._profile.use_device is not None
        if not wait:
            self._profile.use_device = None
        if torch_private.is_profiling():
            with _variables(**{TEARDOWN: self._teardown}):
                self._profile.__exit__(None, None, None)
        if on_card and self._teardown == "1":
            _see_cupti_off()
        self._level.value = self._level_after
        if self._is_first:
            _end_thread()
        results = self._profile.kineto_results
        return [] if results is None else list(results.events())
