"""Error isolation between gpuledger and the recorded program.

An exception raised while gpuledger's code runs has one of two origins. Either it is a bug or failure of gpuledger: then
the recording ends and the program continues. Or it comes from the program, for example from a signal handler that
interrupted gpuledger's code, or from Ctrl-C: then it propagates to the program, with gpuledger's frames removed from
the traceback.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch

import gpuledger
from gpuledger.collect.adapter.program_objects import module_of_class

_PACKAGE_FILES = os.path.dirname(os.path.abspath(gpuledger.__file__)) + os.sep
_OPERATORS_FILE = torch._ops.__file__
"""File of ``torch.ops``. An operator called from Python has a frame of this file; one called from C++ does not."""

_OUR_PACKAGES = sys.stdlib_module_names | {"builtins", "torch", "numpy", "pynvml", "gpuledger"}
"""Packages that define the exceptions which gpuledger's own code can raise."""

_UNWRITABLE = (errno.EFBIG, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)
""":attr:`OSError.errno` where the machine or a limit of the process prevents writing."""


class Guard:
    """Wraps callbacks from torch's hooks, so that an error in gpuledger ends the recording and not the program.

    Args:
        fail: Called with an error of gpuledger; must not raise.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self.ended = False
        """Whether the recording has ended. Wrapped functions then do nothing."""
        self._fail = fail
        self.lacked_room = False
        """Whether a callback was skipped because the program was at Python's recursion limit."""
        self._pid = os.getpid()
        self._unsettled: BaseException | None = None

    def __call__(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return ``function`` wrapped so that gpuledger's errors do not leave it.

        Does nothing once the recording has ended.
        """
        return self._guarded(function, for_good=False)

    def for_good(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return ``function`` wrapped so that gpuledger's errors do not leave it. Does nothing in a forked child."""
        return self._guarded(function, for_good=True)

    def _guarded(self, function: Callable[..., None], *, for_good: bool) -> Callable[..., None]:
        def guarded(*args: Any, **kwargs: Any) -> None:
            try:
                if (for_good or not (torch.compiler.is_compiling() or self.ended)) and os.getpid() == self._pid:
                    function(*args, **kwargs)
            except RecursionError:  # the program is at the recursion limit: skip the callback
                self.lacked_room = True
            except BaseException as error:
                if not self.absorbs(error):
                    raise

        return guarded

    def absorbs(self, error: BaseException) -> bool:
        """Handle an exception raised in gpuledger's code. Call it inside ``except``.

        Returns:
            True for an error of gpuledger; the recording has then ended. False for an exception of the program; its
            traceback no longer shows gpuledger's frames, and the caller must re-raise it with ``raise`` alone.
        """
        try:
            if not is_ours(error):
                forget_own_frames(error)
                return False
            self.ended = True
            if os.getpid() == self._pid:  # a forked child must not end its parent's recording
                self._unsettled = error
                self.settle()
        except RecursionError:  # too close to the recursion limit: settle() ends the recording later
            self.ended = True
            self._unsettled = self._unsettled or error
        return True

    def settle(self) -> None:
        """End the recording if an earlier error could not be handled at the recursion limit."""
        error, self._unsettled = self._unsettled, None
        if error is not None:
            try:
                self._fail(error)
            except RecursionError:
                self._unsettled = error


def do_all(actions: Sequence[Callable[[], object]], *, tries: int = 1) -> None:
    """Call every action, even if an earlier one raised; one that raises up to ``tries`` times.

    Raises:
        BaseException: the first exception of the program if an action raised one, otherwise the first of all.
    """
    raised: list[BaseException] = []
    for action in actions:
        for _ in range(tries):
            try:
                action()
                break
            except BaseException as error:
                raised.append(error)
    if raised:
        raised = [error for error in raised if not is_ours(error)] or raised
        try:
            raise raised[0]
        finally:  # a frame of the traceback with a variable that holds the exception would keep its callers alive
            raised.clear()


def take_out_all(actions: Sequence[Callable[[], object]]) -> None:
    """Call every action that removes something, as :func:`do_all`, and one that raised a second time.

    So what a signal handler of the program interrupted, or an error of gpuledger, is removed all the same. Each action
    must be able to continue where it stopped.
    """
    do_all(actions, tries=2)


def calling(guard: Guard, method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls a method through the guard while its owner and the guard are alive.

    For registries that cannot unregister a callback and also call it in a forked child. Holds weak references only.
    """
    owner, of = weakref.WeakMethod(method), weakref.ref(guard)

    def call() -> None:
        try:
            alive = owner()
            if alive is not None:
                alive()
        except BaseException as error:
            absorbing = of()
            if absorbing is None or not absorbing.absorbs(error):
                raise

    return call


# -- origin of an error ----------------------------------------------------------------------------------------------


def is_ours(error: BaseException) -> bool:
    """Return whether an exception raised in gpuledger's code is gpuledger's own error.

    It is not if a signal handler raised it: Python runs signal handlers between any two instructions of the main
    thread, gpuledger's included, with the interrupted frame as argument. It is not if gpuledger's code cannot raise it,
    either: KeyboardInterrupt, SystemExit, or an exception class of the program that another thread raised in this one.
    Such threads also raise TimeoutError as a class. One that a call of gpuledger's raises has a message.
    """
    if not isinstance(error, Exception) or (type(error) is TimeoutError and not error.args):
        return False
    frames = [frame for frame, _ in _walk(error.__traceback__)]
    handlers = _signal_handlers()
    for interrupted, called in pairwise([None, *frames]):
        if called is None or is_our_file(called.f_code):
            continue
        if called.f_code in handlers or _was_given(called, interrupted):
            return False
    raised_by_ours = bool(frames) and _is_of_our_packages(frames[-1].f_globals.get("__name__"))
    return not raised_by_ours or _is_of_our_packages(module_of_class(type(error)))


def _is_of_our_packages(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _OUR_PACKAGES


def _signal_handlers() -> list[CodeType]:
    """Return the code objects of the signal handlers of this process."""
    found = []
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while hasattr(handler, "func"):  # functools.partial
            handler = handler.func
        by_class = vars(type(handler)).get("__call__")  # an instance with __call__
        for function in (getattr(handler, "__func__", handler), by_class):
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                found.append(code)
    return found


def _was_given(frame: FrameType, interrupted: FrameType | None) -> bool:
    """Return whether a frame has the interrupted frame among its arguments, as a signal handler does.

    Or a frame of gpuledger: an inner guard has then removed the interrupted frame from the traceback.
    """
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _TAKES_MORE)
    values = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    given = [inner for value in values for inner in (value if type(value) is tuple else (value,))]
    frames = [value for value in given if type(value) is FrameType]
    return any(value is interrupted or is_our_file(value.f_code) for value in frames)


_TAKES_MORE = 0x04
"""CO_VARARGS: a function with ``*args``."""


def _walk(place: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while place is not None:
        yield place.tb_frame, place.tb_lineno
        place = place.tb_next


def is_our_file(code: CodeType) -> bool:
    """Return whether code is that of a file of the package."""
    return code.co_filename.startswith(_PACKAGE_FILES)


def forget_own_frames(error: BaseException) -> None:
    """Remove gpuledger's frames, and those of torch between them, from an exception's traceback.

    Follow with ``raise`` alone, which adds no frame. The traceback then shows only the program's own frames.
    """
    try:
        error.__traceback__ = _without_own_frames(error.__traceback__)
    except Exception:  # the program's error matters, not how its traceback looks
        return


def _without_own_frames(place: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    after_ours = False
    while place is not None:
        code = place.tb_frame.f_code
        ours = is_our_file(code)
        if not (ours or (after_ours and code.co_filename == _OPERATORS_FILE)):
            kept.append(place)
        place, after_ours = place.tb_next, ours
    following: TracebackType | None = None
    for place in reversed(kept):
        place.tb_next = following
        following = place
    return following


def describe(error: BaseException) -> str:
    """Return an error in one line, with the file and line that raised it."""
    where = ""
    for frame, line in _walk(error.__traceback__):
        where = f" ({Path(frame.f_code.co_filename).name}:{line})"
    return f"{type(error).__name__}: {error}{where}"


def stopped_by(error: BaseException) -> str:
    """Return the note of a recording that an error has stopped: a file that could not be written, or a defect."""
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        return f"The recording stopped because a file of the run could not be written: {error.strerror}"
    return f"The recording stopped because of an internal error of gpuledger: {describe(error)}"
