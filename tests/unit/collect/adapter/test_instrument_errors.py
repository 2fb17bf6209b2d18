"""Observers that raise: what they absorb does not reach the program, and nothing of them stays."""

from __future__ import annotations

from typing import Any

import observed_functions as functions
import pytest
from observing import Seen, observed, raises_here, traceback_of

from gpuledger.collect.adapter import dynamo
from gpuledger.collect.adapter.instrument import Observation, remove_all
from gpuledger.collect.adapter.observer import Observer

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("where", ["enter", "leave", "fail"])
def test_at_the_recursion_limit_the_observer_is_left_out(where: str, count: int) -> None:
    parts: dict[str, Any] = {"enter": lambda *_: 1, "leave": lambda *_: None, "fail": lambda *_: None}
    parts[where] = raises_here(RecursionError)
    observers = [Observer(**parts) for _ in range(count)]
    with observed(functions.everything, *observers), observed(functions.raises, *observers):
        assert functions.everything(1) == (1, 2, (), 3, {})
        with pytest.raises(ZeroDivisionError) as caught:
            functions.raises(1)
    assert caught.value.__context__ is None or isinstance(caught.value.__context__, RecursionError)


def test_what_enter_raises_comes_before_the_body() -> None:
    functions.finished.clear()
    with (
        observed(functions.returns_nothing, Observer(raises_here(KeyError))),
        pytest.raises(KeyError, match="of the observer's"),
    ):
        functions.returns_nothing(1)
    assert functions.finished == []


def test_where_leave_raises_fail_follows() -> None:
    failed: list[Any] = []
    observer = Observer(lambda *_: "token", raises_here(KeyError), failed.append)
    with observed(functions.everything, observer), pytest.raises(KeyError):
        functions.everything(1)
    assert failed == ["token"]


def test_of_several_those_that_were_not_left_fail() -> None:
    told: list[Any] = []
    inner = Observer(lambda *_: "inner", raises_here(KeyError), told.append)
    with observed(functions.everything, Seen("outer ", told).observer, inner), pytest.raises(KeyError):
        functions.everything(1)
    assert told == [("outer enter", 1, 2, (), 3, {}), "inner", ("outer fail",)]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("where", ["enter", "leave", "fail"])
def test_what_an_observer_absorbs_does_not_reach_the_program(where: str, count: int) -> None:
    absorbed: list[BaseException] = []

    def absorbs(error: BaseException) -> bool:
        absorbed.append(error)
        return True

    parts: dict[str, Any] = {"enter": lambda *_: 1, "leave": lambda *_: None, "fail": lambda *_: None}
    parts[where] = raises_here(KeyError)
    told: list[Any] = []
    observers = [Observer(**parts, absorbs=absorbs), Seen(into=told).observer][:count]
    bare = traceback_of(functions.raises, 1)
    with observed(functions.everything, *observers), observed(functions.raises, *observers):
        assert functions.everything(1) == (1, 2, (), 3, {})
        assert traceback_of(functions.raises, 1) == bare
    assert [type(error) for error in absorbed] == [KeyError] * (2 if where == "enter" else 1)
    assert [call[0] for call in told] == (["enter", "leave", "enter", "fail"] if count == 2 else [])


def test_where_enter_raises_those_entered_before_fail() -> None:
    told: list[Any] = []
    with (
        observed(functions.everything, Seen(into=told).observer, Observer(raises_here(KeyError))),
        pytest.raises(KeyError),
    ):
        functions.everything(1)
    assert [call[0] for call in told] == ["enter", "fail"]


def test_an_observer_that_could_not_be_taken_out_can_be_taken_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    code = functions.everything.__code__
    made = [Observation(functions.everything, Seen().observer) for _ in range(3)]
    with monkeypatch.context() as broken:
        broken.setattr(dynamo, "compiled_frames", raises_here(MemoryError))
        with pytest.raises(MemoryError):
            remove_all(made)
    assert functions.everything.__code__ is not code
    remove_all(made)
    assert made == []
    assert functions.everything.__code__ is code


def test_an_observer_that_could_not_be_put_in_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Seen(), Seen()
    with monkeypatch.context() as broken:
        broken.setattr(dynamo, "compiled_frames", raises_here(MemoryError))
        with pytest.raises(MemoryError):
            Observation(functions.everything, second.observer)
    with observed(functions.everything, first.observer):
        functions.everything(1)
    assert second.calls == []
    assert len(first.calls) == 2
