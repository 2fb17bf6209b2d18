"""Observers of a function's calls: their callbacks, what calls several of them, and the statements that do this."""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

from gpuledger.collect.adapter.traced import TRACED

OBSERVER = "gpuledger: the observer stands here"
"""A constant in the compiled code that is replaced by the observer. So no global name is visible to the program."""

_OBSERVED = f"""
if torch.compiler.{TRACED}():
    BODY
    return
try:
    _gpuledger_token = {OBSERVER!r}.enter()
except RecursionError:
    _gpuledger_token = None
except BaseException as _gpuledger_error:
    _gpuledger_token = None
    if not {OBSERVER!r}.absorbs(_gpuledger_error):
        raise
try:
    OBSERVED_BODY
except BaseException:
    try:
        {OBSERVER!r}.fail(_gpuledger_token)
    except RecursionError:
        pass
    except BaseException as _gpuledger_error:
        if not {OBSERVER!r}.absorbs(_gpuledger_error, _gpuledger_token):
            raise
    del _gpuledger_token
    raise
"""
"""Template of an observed function's body. At the recursion limit the observer is skipped and the program continues."""

_FAILS = f"""
if not torch.compiler.{TRACED}():
    try:
        {OBSERVER!r}.fail()
    except RecursionError:
        pass
    except BaseException:
        if not {OBSERVER!r}.absorbed():
            raise
"""
"""What runs while all observers only want to know when the function raises, if it does. It has no variables."""

_FAILING = """
try:
    BODY
except BaseException:
    raise
"""
_ENDED = """
if ERROR is not None:
    FAILS
"""
"""Beginning of an ``__exit__`` then: it is called with the exception that ends its block."""

_LEAVE = f"""
_gpuledger_result = None
if _gpuledger_token is not None:
    try:
        {OBSERVER!r}.leave(_gpuledger_token, _gpuledger_result)
    except RecursionError:
        pass
    except BaseException as _gpuledger_error:
        if not {OBSERVER!r}.absorbs(_gpuledger_error, _gpuledger_token):
            raise
return _gpuledger_result
"""
"""Replacement of a ``return`` statement."""


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
        only_fails: Whether it only wants to know when the function raises: ``fail`` is then called without a call of
            ``enter`` before. While a function has no other observers, a call that does not raise runs no code of ours.
    """

    __slots__ = ("absorbs", "enter", "fail", "hands_over", "leave", "only_fails")

    def __init__(
        self,
        enter: Callable[..., Any],
        leave: Callable[[Any, Any], None] = _nothing,
        fail: Callable[[Any], None] = _nothing,
        *,
        absorbs: Absorbs = absorbs_nothing,
        hands_over: bool = False,
        only_fails: bool = False,
    ) -> None:
        self.absorbs = absorbs
        self.enter = enter
        self.leave = leave
        self.fail = fail
        self.hands_over = hands_over
        self.only_fails = only_fails


class Observers(Observer):
    """One observer that calls all observers installed at the time of a call; the first is the outermost.

    Each observer handles its own exceptions. Those that only want to know when the function raises are apart, in
    ``failing``: so the others see what they see without them.
    """

    __slots__ = ("failing", "installed")

    def __init__(self) -> None:
        self.installed: list[Observer] = []
        self.failing: list[Observer] = []
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
            _fail_all(entered)
            raise
        return entered or None

    def _leave(self, entered: list[tuple[Observer, Any]], result: Any) -> None:
        while entered:
            observer, token = entered[-1]
            _ask(observer, observer.leave, token, result)
            entered.pop()

    def _fail(self, entered: list[tuple[Observer, Any]] | None = None) -> None:
        """Call ``fail`` of the observers that have entered the call, and of those that only want to know of this."""
        _fail_all(entered or [])
        _fail_all([(observer, None) for observer in self.failing])

    def _absorbs(self, error: BaseException, entered: Sequence[tuple[Observer, Any]] | None = None) -> bool:
        """Return whether the outermost observer absorbs an error of this class's own.

        A call that ends can have ``entered`` observers that are not installed any more.
        """
        observers = [*(observer for observer, _ in entered or ()), *self.installed, *self.failing]
        return any(observer.absorbs(error) for observer in observers[:1])

    def absorbed(self) -> bool:
        """Return whether the exception that is being handled is one of this class's own, and is absorbed."""
        error = sys.exception()
        return error is not None and self._absorbs(error)

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


def _fail_all(entered: list[tuple[Observer, Any]]) -> None:
    """Call ``fail`` of observers with their tokens, the last one first."""
    while entered:
        observer, token = entered.pop()
        _ask(observer, observer.fail, token)


def fails_only(fail: Callable[[BaseException], None], absorbs: Absorbs) -> Observer:
    """Return an observer that calls ``fail`` with each exception that leaves the function.

    Of an ``__exit__``, it is the exception that ends the block.
    """

    def failed(_: Any) -> None:
        error = sys.exception()
        if error is not None:
            fail(error)

    return Observer(_nothing, fail=failed, absorbs=absorbs, only_fails=True)


# -- statements in a function's body -----------------------------------------------------------------------------------


def observe(function: ast.FunctionDef, again: list[ast.stmt] | None, *, has_torch: bool) -> bool:
    """Wrap a function's body in calls of an observer. Return False if it has no body.

    Args:
        function: The function, which is changed.
        again: Its body once more, for the calls that are observed. If it is None, the observers only want to know when
            the function raises.
        has_torch: Whether ``torch`` is a global name there. ``torch.compile`` then traces the original body.
    """
    documented = isinstance(function.body[0], ast.Expr) and isinstance(function.body[0].value, ast.Constant)
    head, body = function.body[:documented], function.body[documented:]
    if not body:
        return False
    returned = [node for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    place: ast.AST = cast("ast.AST", returned[-1].value) if returned else body[-1]
    if again is None:
        function.body = [*head, *_failing(function, body, place, has_torch=has_torch)]
        return True
    observed = _at(ast.parse(_OBSERVED), place).body
    gate, entering, observing = (cast("Any", statement) for statement in observed)
    gate.body = [*body, *gate.body[1:]]
    call = entering.body[0].value
    call.args = [ast.copy_location(ast.Name(name, ast.Load()), place) for name in _parameters(function.args)]
    observing.body = [*_leaving(again[documented:], place), *_leave(None, place)]
    function.body = [*head, *([gate] if has_torch else []), entering, observing]
    return True


def _failing(function: ast.FunctionDef, body: list[ast.stmt], place: ast.AST, *, has_torch: bool) -> list[ast.stmt]:
    """Return a function's body with a call of observers where an exception leaves it, or where it is given one."""
    parsed = [_at(ast.parse(template), place).body[0] for template in (_FAILS, _FAILING, _ENDED)]
    fails, failing, ended = (cast("Any", statement) for statement in parsed)
    told = [fails] if has_torch else fails.body
    if function.name == "__exit__":
        ended.test.left.id, ended.body = _parameters(function.args)[2], told
        return [ended, *body]
    failing.body, failing.handlers[0].body = body, [*told, *failing.handlers[0].body]
    return [ast.copy_location(failing, body[0])]


def _parameters(arguments: ast.arguments) -> list[str]:
    kept = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    return [one.arg for one in kept if one is not None]


def _at(tree: ast.Module, place: ast.AST) -> ast.Module:
    """Return ``tree`` with the source position of ``place`` on every node."""
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            ast.copy_location(node, place)
    return tree


def _leave(value: ast.expr | None, place: ast.AST) -> list[ast.stmt]:
    """Return the statements that replace ``return value``."""
    statements = _at(ast.parse(_LEAVE), place).body
    if value is not None:
        cast("ast.Assign", statements[0]).value = value
    return statements


def _leaving(block: list[ast.stmt], place: ast.AST) -> list[ast.stmt]:
    """Return a function's statements with every ``return`` replaced, but not those of functions nested in it."""
    statements: list[ast.stmt] = []
    for statement in block:
        if isinstance(statement, ast.Return):
            statements += _leave(statement.value, statement.value or place)
            continue
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            parts = (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ()))
            for part, name in itertools.product(parts, ("body", "orelse", "finalbody")):
                if hasattr(part, name):
                    setattr(part, name, _leaving(getattr(part, name), place))
        statements.append(statement)
    return statements
