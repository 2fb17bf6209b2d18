"""Observers for tests: one that writes down what it is told, and parts that raise."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from gpuledger.collect.adapter import dynamo
from gpuledger.collect.adapter.instrument import Observation
from gpuledger.collect.adapter.observer import Observer


class Seen:
    """An observer that writes down what it is told."""

    def __init__(self, name: str = "", into: list[Any] | None = None, **how: Any) -> None:
        self.calls: list[Any] = [] if into is None else into
        self.observer = Observer(self._enter, self._leave, self._fail, **how)
        self._name = name

    def _enter(self, *parameters: Any) -> tuple[Any, ...]:
        self.calls.append((f"{self._name}enter", *parameters))
        return parameters

    def _leave(self, token: Any, result: Any) -> None:
        self.calls.append((f"{self._name}leave", result))

    def _fail(self, token: Any) -> None:
        self.calls.append((f"{self._name}fail",))


@contextmanager
def observed(function: Callable[..., Any], *observers: Observer, **how: Any) -> Iterator[None]:
    made = [Observation(function, observer, **how) for observer in observers]
    try:
        yield
    finally:
        for one in made:
            one.remove()


def put_back_code(*functions: Callable[..., Any]) -> None:
    """Give functions their own code again, which code that another test has compiled can have kept observed."""
    with mock.patch.object(dynamo, "compiled_frames", return_value=0):
        for function in functions:
            Observation(function, Observer(lambda *_: None)).remove()


def traceback_of(function: Callable[..., Any], *arguments: Any) -> str:
    try:
        function(*arguments)
    except Exception:
        return traceback.format_exc()
    raise AssertionError("it should have raised")


def raises_here(error: type[Exception]) -> Callable[..., Any]:
    def raising(*_: Any) -> Any:
        raise error("of the observer's")

    return raising
