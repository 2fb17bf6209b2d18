"""The guard: errors of ours end the recording, and what comes from outside goes on without our frames."""

from __future__ import annotations

import ctypes
import errno
import functools
import gc
import json
import os
import signal
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

from gpuledger.collect.adapter import guard as guards
from gpuledger.collect.adapter.guard import Guard, calling, describe, do_all, forget_own_frames, is_ours, stopped_by
from gpuledger.collect.attribution.tags import base36
from gpuledger.errors import UsageError

pytestmark = pytest.mark.torch

PACKAGE = os.path.dirname(os.path.dirname(guards.__file__))


class DeadlineError(Exception):
    """Of the program's."""


@pytest.fixture
def failed() -> list[BaseException]:
    return []


@pytest.fixture
def guarded(failed: list[BaseException]) -> Guard:
    return Guard(failed.append)


@pytest.fixture
def number() -> Iterator[int]:
    """A signal whose handler is put back."""
    before = signal.getsignal(signal.SIGUSR1)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def signals(number: int) -> Callable[[], None]:
    """Return what runs below the guard when the signal comes."""

    def interrupted() -> None:
        signal.raise_signal(number)

    return interrupted


# -- errors of ours ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyError("a"), ZeroDivisionError(), OSError(28, "full"), UsageError("wrong")])
def test_an_error_of_ours_ends_the_recording(error: Exception, guarded: Guard, failed: list[BaseException]) -> None:
    calls = []

    @guarded
    def entrance(value: int) -> None:
        calls.append(value)
        raise error

    entrance(1)
    entrance(2)
    assert (calls, failed, guarded.ended) == ([1], [error], True)


def test_what_is_guarded_for_good_runs_after_the_end(guarded: Guard, failed: list[BaseException]) -> None:
    calls: list[int] = []
    guarded.ended = True
    guarded.for_good(calls.append)(1)
    guarded(calls.append)(2)
    assert calls == [1]


def test_in_a_forked_child_nothing_runs(guarded: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(os, "getpid", lambda: -1)
    guarded(calls.append)(1)
    guarded.for_good(calls.append)(2)
    assert calls == []


def test_an_error_below_json_is_ours(guarded: Guard, failed: list[BaseException]) -> None:
    guarded(lambda: json.loads("{"))()
    assert [type(error) for error in failed] == [json.JSONDecodeError]


# -- signal handlers --------------------------------------------------------------------------------------------------


def handler(_number: int, _frame: Any) -> None:
    raise DeadlineError("over")


def builtin_handler(_number: int, _frame: Any) -> None:
    raise TimeoutError("over")


def deleting(_number: int, frame: Any) -> None:
    del frame
    raise TimeoutError("over")


def resetting(number: int, _frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise TimeoutError("over")


def raising_below(number: int, frame: Any) -> None:
    time.sleep(0)
    builtin_handler(number, None)


def of_all(*arguments: Any) -> None:
    signal.signal(arguments[0], signal.SIG_IGN)
    raise TimeoutError("over")


def by_keyword(prefix: str, number: int, frame: Any) -> None:
    raise TimeoutError(prefix)


def below_json(_number: int, _frame: Any) -> None:
    json.loads("{")


class Kept:
    def method(self, _number: int, _frame: Any) -> None:
        raise TimeoutError("over")

    @staticmethod
    def static(_number: int, _frame: Any) -> None:
        raise TimeoutError("over")

    @classmethod
    def of_class(cls, _number: int, _frame: Any) -> None:
        raise TimeoutError("over")


class Called:
    def __call__(self, number: int, frame: Any) -> None:
        raise TimeoutError("over")


HANDLERS: dict[str, Callable[[int, Any], Any]] = {
    "function": handler,
    "error of Python's": builtin_handler,
    "lambda": lambda _number, _frame: int("x"),
    "method": Kept().method,
    "static method": Kept.static,
    "class method": Kept.of_class,
    "object": Called(),
    "partial": functools.partial(by_keyword, "over"),
    "partial of a partial": functools.partial(functools.partial(by_keyword), "over"),
    "partial of an object": functools.partial(Called()),
    "partial of a method": functools.partial(Kept().method),
    "deletes its frame": deleting,
    "resets itself": resetting,
    "raises in what it calls": raising_below,
    "takes any arguments, and resets itself": of_all,
    "raises in Python's library": below_json,
}


@pytest.mark.parametrize("handles", HANDLERS.values(), ids=HANDLERS)
def test_what_a_signal_handler_raises_goes_on(
    handles: Any, guarded: Guard, failed: list[BaseException], number: int
) -> None:
    signal.signal(number, handles)
    entrance = guarded(signals(number))
    with pytest.raises((DeadlineError, TimeoutError, ValueError)) as caught:
        entrance()
    assert failed == []
    assert not guarded.ended
    assert not any(str(place.path).startswith(PACKAGE) for place in caught.traceback)


def test_a_handler_that_raises_in_our_own_frame(
    guarded: Guard, failed: list[BaseException], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It interrupts the guard itself, between two of its lines: the interrupted frame is the last of ours."""
    monkeypatch.setattr(os, "getpid", lambda: signal.raise_signal(number))
    signal.signal(number, handler)
    with pytest.raises(DeadlineError):
        guarded.for_good(lambda: None)()
    assert failed == []


def test_what_a_profile_function_raises_goes_on_through_several_guards(
    guarded: Guard, failed: list[BaseException]
) -> None:
    """An inner guard removes our frames from the traceback, and an outer one is asked about the same exception."""

    def see(frame: FrameType, _event: str, _argument: object) -> None:
        if frame.f_code is base36.__code__:
            raise DeadlineError

    def of_ours() -> None:
        base36(5)

    sys.setprofile(see)
    try:
        with pytest.raises(DeadlineError):
            guarded(guarded(of_ours))()
    finally:
        sys.setprofile(None)
    assert failed == []
    assert not guarded.ended


def test_an_interrupt_and_the_end_of_the_process_go_on(guarded: Guard, failed: list[BaseException]) -> None:
    def raises(error: BaseException) -> None:
        raise error

    for error in (KeyboardInterrupt(), SystemExit(3), GeneratorExit()):
        with pytest.raises(type(error)):
            guarded(raises)(error)
    assert failed == []


LONG = 1 << 600_000


@pytest.mark.parametrize(
    ("busy", "argument"), [(base36, LONG), (statistics.mean, range(1 << 24))], ids=["in our code", "in the library"]
)
@pytest.mark.parametrize("kind", [DeadlineError, TimeoutError])
def test_an_exception_that_another_thread_puts_in_goes_on(
    kind: type[Exception], busy: Callable[..., Any], argument: Any, guarded: Guard, failed: list[BaseException]
) -> None:
    """What Ray, Celery and notebooks end a task with: an exception of their own class, at any instruction.

    Programs that limit a call's time use TimeoutError.
    """
    caught: list[BaseException] = []

    def thread() -> None:
        try:
            guarded(busy)(argument)
        except kind as error:
            caught.append(error)

    worker = threading.Thread(target=thread)
    worker.start()
    while busy.__code__ not in codes_of(worker):
        time.sleep(0.001)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident or 0), ctypes.py_object(kind))
    worker.join()
    assert [type(one) for one in caught] == [kind]
    assert failed == []


def codes_of(thread: threading.Thread) -> list[CodeType]:
    """Return what a thread is running."""
    assert thread.is_alive(), "it ended before it could be interrupted"
    frame = sys._current_frames().get(thread.ident or 0)
    return [] if frame is None else [one.f_code for one, _ in traceback.walk_stack(frame)]


# -- tracebacks -------------------------------------------------------------------------------------------------------


def test_the_traceback_of_a_program_s_exception_has_no_frame_of_ours(guarded: Guard, number: int) -> None:
    signal.signal(number, handler)

    def bare() -> None:
        signals(number)()

    def entered() -> None:
        guarded(signals(number))()

    def names(function: Callable[[], None]) -> list[str]:
        try:
            function()
        except DeadlineError as error:
            return [frame.name for frame in traceback.extract_tb(error.__traceback__)][2:]
        raise AssertionError("unreachable")

    assert names(entered) == names(bare) == ["interrupted", "handler"]


def test_where_all_frames_are_ours_none_is_left() -> None:
    error = None
    try:
        describe(None)  # type: ignore[arg-type]
    except AttributeError as raised:
        raised.__traceback__ = raised.__traceback__.tb_next  # type: ignore[union-attr]
        error = raised
    assert error is not None
    assert error.__traceback__ is not None
    assert is_ours(error)
    forget_own_frames(error)
    assert error.__traceback__ is None


def test_an_error_of_the_program_stays_where_its_traceback_cannot_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuledger.collect.adapter.guard.is_our_file", lambda _: 1 / 0)
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    before = caught.value.__traceback__
    forget_own_frames(caught.value)
    assert caught.value.__traceback__ is before


def test_an_error_is_described_with_the_line_that_raised_it() -> None:
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    told = describe(caught.value)
    assert told.startswith("JSONDecodeError: ")
    assert "decoder.py:" in told


# -- at the recursion limit -------------------------------------------------------------------------------------------


def test_without_room_to_deal_with_an_error_it_is_settled_later(failed: list[BaseException]) -> None:
    room = [False]

    def fail(error: BaseException) -> None:
        if not room[0]:
            raise RecursionError
        failed.append(error)

    guarded = Guard(fail)
    error = KeyError("a")

    def entrance() -> None:
        raise error

    guarded(entrance)()
    assert (guarded.ended, failed) == (True, [])
    room[0] = True
    guarded.settle()
    guarded.settle()
    assert failed == [error]


def test_no_room_to_ask_whose_error_it_is(
    guarded: Guard, failed: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_: BaseException) -> bool:
        raise RecursionError

    monkeypatch.setattr(guards, "is_ours", no_room)
    guarded(lambda: {}["a"])()  # type: ignore[index]
    assert (guarded.ended, failed) == (True, [])
    guarded.settle()
    assert [type(error) for error in failed] == [KeyError]


def test_at_the_real_limit_the_program_goes_on(guarded: Guard, failed: list[BaseException]) -> None:
    def entrance() -> None:
        raise KeyError("a")

    entered = guarded(entrance)

    def deep() -> int:
        try:
            return deep() + 1
        except RecursionError:
            entered()
            return 0

    try:
        assert deep() > 10
    except RecursionError:  # no room for the entrance's own frame: that is the program's call
        assert sys.getrecursionlimit()
    entered()
    guarded.settle()
    assert len(failed) <= 1


# -- for who calls in forked children, and for taking out -------------------------------------------------------------


class Owner:
    def __init__(self, guard: Guard, calls: list[int]) -> None:
        self.called = calling(guard, self.method)
        self._calls = calls

    def method(self) -> None:
        self._calls.append(1)
        raise KeyError("a")


def test_a_method_is_called_while_its_owner_lives(guarded: Guard, failed: list[BaseException]) -> None:
    calls: list[int] = []
    owner = Owner(guarded, calls)
    called = owner.called
    called()
    assert (calls, [type(error) for error in failed]) == ([1], [KeyError])
    failed.clear()
    del owner
    gc.collect()
    called()
    assert calls == [1]


def test_in_a_forked_child_an_error_of_ours_ends_all_and_writes_nothing(
    guarded: Guard, failed: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(guarded, [])
    monkeypatch.setattr(os, "getpid", lambda: -1)
    owner.called()
    assert (guarded.ended, failed) == (True, [])


def test_every_action_is_done_whatever_one_raises() -> None:
    done: list[str] = []

    def fails() -> None:
        done.append("b")
        raise KeyError("b")

    with pytest.raises(KeyError):
        do_all([lambda: done.append("a"), fails, lambda: done.append("c")])
    assert done == ["a", "b", "c"]


def test_a_file_that_cannot_be_written_is_no_defect_of_ours() -> None:
    full = stopped_by(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert full == "The recording stopped because a file of the run could not be written: No space left on device"
    assert "internal error of gpuledger: OSError" in stopped_by(OSError(errno.ESTALE, "another process"))
    assert "internal error of gpuledger: KeyError: 1" in stopped_by(KeyError(1))
