"""Kineto, PyTorch's built-in profiler, run without visible effects on the program.

Uses private functions of PyTorch and of libkineto, as :mod:`.torch_private` does for the rest of torch.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from operator import call
from os import listdir
from pathlib import Path
from typing import Any

import torch

from gpuledger.collect.adapter import kineto_events, torch_private

TEARDOWN, LOG_LEVEL = "TEARDOWN_CUPTI", "KINETO_LOG_LEVEL"
"""Environment variables of Kineto: whether to detach CUPTI after a profile, and the minimum level of stderr output."""

KEEP_ATTACHED = (TEARDOWN, "0")

SILENT = 99
"""A log level above all of Kineto's messages."""

REGISTERED_THREAD = threading.get_ident()
"""The thread that imported torch. Kineto prints an error if another thread uses it first."""

_DAEMON = "KINETO_USE_DAEMON"
"""Environment variable with which torch begins Kineto at its import, for a profiling daemon."""

_REGISTER_CLIENT = "_ZN9libkineto12LibkinetoApi14registerClientEPNS_15ClientInterfaceE"

NOT_BEGUN, ERRORS = 0, 4
"""Kineto's log level before its first use in a process, and the level that torch sets if no variable does."""


GOING_S, GOING_UNSEEN_S, GOING_CALL_S = 1.0, 0.1, 0.001
"""Longest wait for CUPTI to detach after a profile, the wait without a thread to watch, and the interval of CUDA calls.

It detaches in one of these calls. On a busy host that took more than 0.1 s.
"""

MOST_TRIES = 5
"""Maximum number of attempts to end a profile, if exceptions of the program interrupt them."""


def _set_variables(**values: str) -> None:
    """Set environment variables for C libraries unless the program has set them. ``os.environ`` does not show them.

    ``TEARDOWN_CUPTI=0`` replaces the program's own value: what it prevents would hang or crash the program.
    """
    for name, value in values.items():
        if name not in os.environ or (name, value) == KEEP_ATTACHED:
            os.putenv(name, value)


def _restore_variables(*names: str) -> None:
    """Restore the program's values of environment variables for C libraries."""
    for name in names:
        if name in os.environ:
            os.putenv(name, os.environ[name])
        else:
            os.unsetenv(name)


def _library() -> ctypes.CDLL:
    """Return the shared library that contains Kineto.

    Raises:
        OSError: this build of torch has it under another name.
    """
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


def _kineto_level() -> ctypes.c_int:
    """Return Kineto's global log level variable; an unused one if torch does not export it."""
    try:
        return ctypes.c_int.in_dll(_library(), "_ZN9libkineto6Logger14severityLevel_E")
    except (OSError, ValueError):
        return ctypes.c_int()


def _level_of_program(level: int) -> int:
    """Return Kineto's log level without gpuledger. Before its first use, it is what Kineto will read then."""
    if level != NOT_BEGUN:
        return level
    chosen = os.environ.get(LOG_LEVEL)
    if chosen is None:
        return ERRORS
    number = re.match(r"\s*[+-]?\d+", chosen)  # as C's atoi
    return 0 if number is None else int(number[0])


def _config_loader() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return Kineto's functions that get its config loader and stop the loader's thread; None if not exported."""
    try:
        library = _library()
        instance = library._ZN9libkineto12ConfigLoader8instanceEv
        stop_thread = library._ZN9libkineto12ConfigLoader10stopThreadEv
    except (OSError, AttributeError):
        return None
    instance.restype, instance.argtypes = ctypes.c_void_p, []
    stop_thread.restype, stop_thread.argtypes = None, [ctypes.c_void_p]
    return instance, stop_thread


def _client_registration() -> tuple[Callable[[], int], Callable[[int, None], None]] | None:
    """Return Kineto's functions that get its interface and register a client there; None if not exported."""
    try:
        library = _library()
        interface, register = library._ZN9libkineto3apiEv, getattr(library, _REGISTER_CLIENT)
    except (OSError, AttributeError):
        return None
    interface.restype, interface.argtypes = ctypes.c_void_p, []
    register.restype, register.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p]
    return interface, register


def starts_silently() -> bool:
    """Return whether a profile can start in this thread without a message in the program's stderr.

    The message is about a client, which torch registers for a profiling daemon. Without a client, there is none.
    """
    is_registered = threading.get_ident() == REGISTERED_THREAD
    return is_registered or (_DAEMON not in os.environ and _client_registration() is not None)


def _leave_out_client() -> None:
    """Register no client, if this thread would otherwise cause the message."""
    registration = _client_registration()
    if threading.get_ident() != REGISTERED_THREAD and _DAEMON not in os.environ and registration is not None:
        interface, register = registration
        register(interface(), None)


def can_end_thread() -> bool:
    """Return whether the thread that Kineto starts can be stopped.

    That thread polls for requests of a profiling daemon. If it keeps running, a forked child of the program hangs at
    exit, because it joins a thread that does not exist in the child.
    """
    return _config_loader() is not None


def _end_thread() -> None:
    """Stop the thread that Kineto started. A later profiler works without it."""
    loader = _config_loader()
    if loader is not None:
        instance, stop_thread = loader
        stop_thread(instance())


def _threads() -> set[str]:
    """Return the ids of the threads of this process, those of C libraries included; empty if not known."""
    try:
        return set(listdir("/proc/self/task"))
    except OSError:
        return set()


def _see_cupti_off(before: set[str]) -> None:
    """Make CUDA calls until CUPTI has detached. A Kineto thread waits for one of them, detaches CUPTI in it, and ends.

    Without this, CUPTI detaches inside one of the program's next CUDA calls, and a profiler that the program has
    started by then loses its records.

    Args:
        before: The threads before the profile was stopped. Without new ones, a fixed time is waited.
    """
    started = _threads() - before
    ends_s = time.monotonic() + (GOING_S if started else GOING_UNSEEN_S)
    while time.monotonic() < ends_s and not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream().query()
        time.sleep(GOING_CALL_S)
        if started and not started & _threads():
            return


def _settings_of_all_threads() -> Any:
    """Return the settings with which a profiler records all threads; None if this torch cannot."""
    try:
        return torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        return None


OthersWait = Callable[[], AbstractContextManager[bool]]
"""Waits until no other thread is inside an operator or about to begin one, and says in a ``with`` block whether so."""

_of_all_threads: list[int] = []
"""Ids of the profiles of all threads that this process has started."""


def can_record_all_threads() -> bool:
    """Return whether a profile of all threads can start in this process: if torch has them, and once.

    An operator that is in progress at the end of one would, at its own end, write into memory of that profile if
    another one has started, and crash the program. It can last as long as the Python code inside it, such as the
    ``forward`` of an ``autograd.Function``.
    """
    return not _of_all_threads and _settings_of_all_threads() is not None


def _call_once(results: list[Any], function: Callable[[], Any]) -> None:
    """Append the result of a function written in C.

    All of this is one call of C code, so that no signal handler can run after the function and before this is known.
    """
    results.extend(map(call, (function,)))


@contextmanager
def _nobody_waits() -> Iterator[bool]:
    """Stand in for :data:`OthersWait` where the calling thread is recorded alone."""
    yield False


class Profiler:
    """A Kineto profile from :meth:`start` to :meth:`stop`: host operators, and kernels if there is a GPU.

    With a GPU, input shapes of operators are recorded, too; Kineto copies the shapes and keeps no memory of tensors,
    except of those that the transforms of ``torch.func`` wrap: it has weak references, and what is inside a wrapper is
    freed with the last one (torch 2.11 and 2.13).

    CUPTI is detached at the end, because it would slow every later launch. It stays attached (as in torch.profiler) if
    the program has CUDA graphs, because detaching can then crash, and if the program has not used the GPU: Kineto
    detaches CUPTI inside the next CUDA call, and without one the process hangs at exit. Kineto's messages are silenced
    by its log level and not by the environment variable: Kineto reads the variable only once, which would also silence
    the program's own profiler.

    A signal handler of the program can raise between any two instructions. The profile is then ended completely before
    the exception goes on: Kineto can crash the process if it is left with a profile that is prepared and not started.

    A profile of all threads has no thread of its own: each can end it, and torch says of none that it is profiled.

    Args:
        with_shapes: Whether input shapes are recorded where there is a GPU.
        all_threads: To record operators of all threads and not of the calling one alone; used when the profile starts
            and ends. If other threads do not wait at its start, the calling one is recorded alone.
    """

    def __init__(self, *, with_shapes: bool = True, all_threads: OthersWait | None = None) -> None:
        self._puts_back: Callable[..., Any] | None = None
        self._level = _kineto_level()
        self._is_first = self._level.value == NOT_BEGUN
        self._level_after = _level_of_program(self._level.value)
        device = "cuda" if torch_private.has_cuda_context() else None
        self._is_on_gpu = device is not None
        self.has_shapes = with_shapes and self._is_on_gpu
        self._teardown = "1" if self._is_on_gpu and not torch_private.holds_graphs() else "0"
        self._others_wait = all_threads if can_record_all_threads() else None
        self.has_all_threads = False
        """Whether it records all threads, from its start on."""
        self._profile = torch.autograd.profiler.profile(
            use_kineto=True, use_device=device, record_shapes=self.has_shapes
        )
        self._is_open = False
        self._prepared: list[None] = []
        """Has one element once Kineto has prepared the profile."""
        self._started: list[None] = []
        """Has one element once it has started."""
        self._results: list[Any] = []
        """Has one element once it has ended."""
        self._threads_before: set[str] | None = None
        """The threads before the first attempt to end the profile, during which Kineto starts one."""

    def start(self) -> None:
        """Begin to record."""
        try:
            self._set_variables()
            self._begin()
            _restore_variables(TEARDOWN, LOG_LEVEL)
        except BaseException:
            self._end(wait=False)
            raise

    def _set_variables(self) -> None:
        _set_variables(**{TEARDOWN: self._teardown, LOG_LEVEL: str(SILENT)})

    def _begin(self) -> None:
        self._is_open = True
        if self._is_first:
            _leave_out_client()
        self._level.value = SILENT
        config = self._profile.config(create_trace_id=True)
        filters = vars(self._profile).get("activity_filters")
        more = {} if filters is None else {"activity_filter": filters}  # since torch 2.13
        prepare = partial(torch._C._autograd._prepare_profiler, config, self._profile.kineto_activities, **more)
        _call_once(self._prepared, prepare)
        self._level.value = SILENT  # the first use of Kineto sets it
        self._start_prepared()

    def _start_prepared(self) -> None:
        torch.autograd.profiler._run_on_profiler_start()
        with (self._others_wait or _nobody_waits)() as is_of_all:
            if is_of_all:
                self._profile.experimental_config = _settings_of_all_threads()
                _of_all_threads.append(id(self))
                torch_private.profilers_of_all_threads.add(id(self))
            self.has_all_threads = is_of_all
            config = self._profile.config(create_trace_id=False)
            enable = partial(torch._C._autograd._enable_profiler, config, self._profile.kineto_activities)
            _call_once(self._started, enable)

    def keep_cupti(self) -> None:
        """Leave CUPTI attached at the end, because the program captures a CUDA graph during the profile."""
        self._teardown = "0"

    def leave_out_operators(self) -> bool:
        """Record only kernels from here on, in this thread. Return False without a GPU, or if torch cannot do it.

        Kineto's own function for this, ``toggle_collection_dynamic``, prints a warning to the program's stderr.
        """
        enable = torch_private.find("_enable_record_function")
        if enable is None or self._profile.use_device is None or self.has_all_threads:
            return False
        self._puts_back = enable
        enable(False)
        return True

    def record_operators_again(self) -> None:
        """Record operators again, in this thread."""
        if self._puts_back is not None:
            self._puts_back(True)
            self._puts_back = None

    def stop(self, *, wait: bool) -> list[Any]:
        """Return Kineto's events. ``wait`` synchronizes the device first; otherwise the caller must have done so."""
        self.record_operators_again()
        self._end(wait=wait)
        return [event for results in self._results for event in kineto_events.events_of(results)]

    def _end(self, *, wait: bool, tries: int = MOST_TRIES) -> None:
        """End the profile. If that is interrupted, go on from there, and raise the first exception afterwards."""
        try:
            self._end_once(wait=wait)
        except BaseException:
            if tries > 1:
                self._end(wait=False, tries=tries - 1)
            raise

    def _end_once(self, *, wait: bool) -> None:
        if not self._is_open:
            _restore_variables(TEARDOWN, LOG_LEVEL)  # an exception came between them and the beginning
            return
        if self._threads_before is None:
            self._threads_before = _threads()
        if wait and self._profile.use_device is not None:
            torch.cuda.synchronize()
        try:
            self._set_variables()
            if self._prepared and not self._started and not torch_private.is_profiling(id(self)):
                self._start_prepared()  # only a profile that was started can be ended
            with ((self.has_all_threads and self._others_wait) or _nobody_waits)():
                if self._started and not self._results and torch_private.is_profiling():
                    _call_once(self._results, torch._C._autograd._disable_profiler)
            torch_private.profilers_of_all_threads.discard(id(self))
        finally:
            _restore_variables(TEARDOWN, LOG_LEVEL)
        torch.autograd.profiler._run_on_profiler_stop()
        if self._is_on_gpu and self._teardown == "1":
            _see_cupti_off(self._threads_before)
        self._level.value = self._level_after
        if self._is_first and self._prepared:
            _end_thread()
        self._is_open = False
