"""Observers of a function's calls: their callbacks, and what calls several of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def _nothing(*_: Any) -> None:
    """Do nothing."""


Absorbs = Callable[[BaseException], bool]
"""Called inside ``except`` with an exception of gpuledger's code. Returns True to suppress it."""


def absorbs_nothing(_: BaseException) -> bool:
    """Return False: every exception propagates."""
    return False


class Observer:
    """Callbacks around a function call.

    Attributes:
        enter: Called before the body with the function's parameters in their order (``*args`` as a tuple, ``**kwargs``
            as a dict). Returns a token, or None to skip ``leave`` and ``fail``.
        leave: Called with the token and the function's return value.
        fail: Called with the token if the function raises. Can follow ``leave`` if that raised.
        absorbs: Handles an exception of any of these, for example
            :meth:`gpuledger.collect.adapter.guard.Guard.absorbs`.
        hands_over: Whether ``enter`` can install other observers that must see the current call.
    """

    __slots__ = ("absorbs", "enter", "fail", "hands_over", "leave")

    def __init__(
        self,
        enter: Callable[..., Any],
        leave: Callable[[Any, Any], None] = _nothing,
        fail: Callable[[Any], None] = _nothing,
        *,
        absorbs: Absorbs = absorbs_nothing,
        hands_over: bool = False,
    ) -> None:
        self.absorbs = absorbs
        self.enter = enter
        self.leave = leave
        self.fail = fail
        self.hands_over = hands_over


class Observers(Observer):
    """One observer that calls all observers installed at the time of a call; the first is the outermost.

    Each observer handles its own exceptions.
    """

    __slots__ = ("installed",)

    def __init__(self) -> None:
        self.installed: list[Observer] = []
        super().__init__(self._enter, self._leave, self._fail, absorbs=self._absorbs)

    def _enter(self, *parameters: Any) -> list[tuple[Observer, Any]] | None:
        installed = self.installed
        if len(installed) == 1 and not installed[0].hands_over:  # by far the most frequent case
            token = _ask(installed[0], installed[0].enter, *parameters)
            return None if token is None else [(installed[0], token)]
        entered: list[tuple[Observer, Any]] = []
        asked: list[Observer] = []
        try:
            while (observer := self._next(asked)) is not None:
                asked.append(observer)
                token = _ask(observer, observer.enter, *parameters)
                if token is not None:
                    entered.append((observer, token))
        except BaseException:
            self._fail(entered)
            raise
        return entered or None

    def _leave(self, entered: list[tuple[Observer, Any]], result: Any) -> None:
        while entered:
            observer, token = entered[-1]
            _ask(observer, observer.leave, token, result)
            entered.pop()

    def _fail(self, entered: list[tuple[Observer, Any]]) -> None:
        while entered:
            observer, token = entered.pop()
            _ask(observer, observer.fail, token)

    def _absorbs(self, error: BaseException, entered: Sequence[tuple[Observer, Any]] = ()) -> bool:
        """Return whether the outermost observer absorbs an error of this class's own.

        A call that ends can have ``entered`` observers that are not installed any more.
        """
        observers = [*(observer for observer, _ in entered), *self.installed]
        return any(observer.absorbs(error) for observer in observers[:1])

    def _next(self, asked: list[Observer]) -> Observer | None:
        """Return the first observer that was not called yet. Observers can be added and removed meanwhile."""
        for observer in self.installed:
            if not any(observer is one for one in asked):
                return observer
        return None


def _ask(observer: Observer, part: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of one callback; None if it raised an exception that the observer absorbs."""
    try:
        return part(*arguments)
    except RecursionError:
        return None
    except BaseException as error:
        if not observer.absorbs(error):
            raise
        return None
