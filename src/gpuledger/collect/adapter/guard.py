"""The one guard: nothing of gpuledger's reaches the program, and nothing of the program's is held back by it.

What is raised while our code runs is either an error of ours, which ends the recording, or it came from outside: a
signal handler of the program ran in between, or somebody interrupted it. That goes on to the program, without our
frames in its traceback.
"""

from __future__ import annotations

import os
import signal
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch

import gpuledger

_PACKAGE_FILES = os.path.dirname(os.path.abspath(gpuledger.__file__)) + os.sep
_OPERATORS_FILE = torch._ops.__file__
"""Whoever calls an operator from Python has a frame of this file, which a program that calls it from C++ has not."""

_OUR_PACKAGES = sys.stdlib_module_names | {"builtins", "torch", "numpy", "pynvml", "gpuledger"}
"""Whose exceptions our own code can raise."""


class Guard:
    """Wraps the entrances from torch's hooks, so that an error of ours ends the recording and not the program.

    Args:
        fail: Takes an error of ours; must not raise.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self.ended = False
        """Whether wrapped functions do nothing any more."""
        self._fail = fail
        self.lacked_room = False
        """Whether something was left out because the program was at Python's recursion limit."""
        self._pid = os.getpid()
        self._unsettled: BaseException | None = None

    def __call__(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return ``function`` so that no error of ours leaves it; it does nothing once the recording has ended."""
        return self._guarded(function, for_good=False)

    def for_good(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return ``function`` so that no error of ours leaves it; in a forked child it does nothing."""
        return self._guarded(function, for_good=True)

    def _guarded(self, function: Callable[..., None], *, for_good: bool) -> Callable[..., None]:
        def guarded(*args: Any, **kwargs: Any) -> None:
            try:
                if (for_good or not (torch.compiler.is_compiling() or self.ended)) and os.getpid() == self._pid:
                    function(*args, **kwargs)
            except RecursionError:  # the program is at its limit, and goes on without us
                self.lacked_room = True
            except BaseException as error:
                if not self.absorbs(error):
                    raise

        return guarded

    def absorbs(self, error: BaseException) -> bool:
        """Deal with what was raised in our code, inside ``except``.

        Returns:
            True for an error of ours: the recording has ended. False for what came from outside: our frames are out of
            its traceback, and a bare ``raise`` is to follow.
        """
        try:
            if not is_ours(error):
                forget_own_frames(error)
                return False
            self.ended = True
            if os.getpid() == self._pid:  # not in a forked child: the recording is its parent's
                self._unsettled = error
                self.settle()
        except RecursionError:  # there is no room even for this: later, at the latest when the program ends
            self.ended = True
            self._unsettled = self._unsettled or error
        return True

    def settle(self) -> None:
        """Deal with an error that came where there was no room to do so."""
        error, self._unsettled = self._unsettled, None
        if error is not None:
            try:
                self._fail(error)
            except RecursionError:
                self._unsettled = error


def do_all(actions: Sequence[Callable[[], object]]) -> None:
    """Call every action, also after one has raised; what the last of these raised goes on."""
    with ExitStack() as stack:
        for action in reversed(actions):
            stack.callback(action)


def calling(guard: Guard, method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls a method, guarded, while its owner and the guard live.

    For who never forgets a function he was given, and calls it in a forked child as well.
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


# -- whose error it is ------------------------------------------------------------------------------------------------


def is_ours(error: BaseException) -> bool:
    """Return whether an error that was raised in our code is an error of ours.

    It is not where a signal handler raised it: Python calls a handler between any two instructions of the main thread,
    ours among them, with the frame that it interrupts. Nor is what no code of ours raises: an interrupt, the end of the
    process, or an exception of the program's own class that another thread has put into this one.
    """
    if not isinstance(error, Exception):
        return False
    frames = [frame for frame, _ in _walk(error.__traceback__)]
    handlers = _signal_handlers()
    for interrupted, called in pairwise(frames):
        if called.f_code in handlers or _was_given(called, interrupted):
            return False
    raised_by_ours = bool(frames) and _is_of_our_packages(frames[-1].f_globals.get("__name__"))
    return not raised_by_ours or _is_of_our_packages(type(error).__module__)


def _is_of_our_packages(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _OUR_PACKAGES


def _signal_handlers() -> list[CodeType]:
    """Return the code of the functions that handle signals in this process."""
    found = []
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while hasattr(handler, "func"):  # functools.partial
            handler = handler.func
        by_class = vars(type(handler)).get("__call__")  # of an object that can be called
        for function in (getattr(handler, "__func__", handler), by_class):
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                found.append(code)
    return found


def _was_given(frame: FrameType, interrupted: FrameType) -> bool:
    """Return whether a frame has another one among its arguments, as a signal handler has."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _TAKES_MORE)
    values = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    given = [inner for value in values for inner in (value if type(value) is tuple else (value,))]
    return any(value is interrupted for value in given)


_TAKES_MORE = 0x04
"""CO_VARARGS: a function with ``*args``."""


def _walk(place: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while place is not None:
        yield place.tb_frame, place.tb_lineno
        place = place.tb_next


def _is_our_file(code: CodeType) -> bool:
    return code.co_filename.startswith(_PACKAGE_FILES)


def forget_own_frames(error: BaseException) -> None:
    """Take our frames out of an error's traceback, and those of torch that are there only because ours are.

    To be followed by a bare ``raise``, which adds no frame: so the program's traceback shows its own frames only.
    """
    kept: list[TracebackType] = []
    place, after_ours = error.__traceback__, False
    while place is not None:
        code = place.tb_frame.f_code
        ours = _is_our_file(code)
        if not (ours or (after_ours and code.co_filename == _OPERATORS_FILE)):
            kept.append(place)
        place, after_ours = place.tb_next, ours
    following: TracebackType | None = None
    for place in reversed(kept):
        place.tb_next = following
        following = place
    error.__traceback__ = following


def describe(error: BaseException) -> str:
    """Return an error in one line, with the file and line that raised it."""
    where = ""
    for frame, line in _walk(error.__traceback__):
        where = f" ({Path(frame.f_code.co_filename).name}:{line})"
    return f"{type(error).__name__}: {error}{where}"
