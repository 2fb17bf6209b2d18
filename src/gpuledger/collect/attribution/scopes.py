"""Scopes: names the program gives to what it does, whoever records it or nobody. Needs no torch.

The scope at work is kept in a context variable, so that every thread and every task has its own. Where something
records, it is told of each entry and exit; where nothing does, a scope is two reads and two writes.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Generator
from contextvars import Context, ContextVar
from typing import Any, TypeVar

from gpuledger.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., object])
SEPARATOR = "/"
LEVELS_KEPT = 4096
"""Levels remembered, so that a scope entered again is looked up; then those of the scopes at work are forgotten."""


class Level:
    """A scope inside those around it.

    ``around`` is the level around it, None around the outermost; ``inside`` holds those inside it that were entered
    before. ``piece`` is for whoever records, as it is the one place that is looked at anyway: ``noted_by`` tells whose.
    """

    __slots__ = ("around", "inside", "noted_by", "path", "piece")

    def __init__(self, path: str, around: Level | None) -> None:
        self.path, self.around = path, around
        self.inside: dict[Any, Level] = {}
        self.noted_by: object = None
        self.piece = ""


_NO_SCOPE = Level("", None)
_current: ContextVar[Level] = ContextVar("gpuledger scope", default=_NO_SCOPE)
_get, _set = _current.get, _current.set
go_back = _set
"""Leaves for the level it is given: for whoever calls decorated functions."""
_levels_made = 0


Listener = Callable[[Level, Any], None]
"""Whoever records: called on the thread where the scope at work changes, with the level that now is, and with the scope
where one was entered, None where one was left."""

Runner = Callable[[Level, Level, Any, Any, Any, Any], Any]
"""Calls a decorated function: with the level around it and that entered for it, its scope, the function, args and
kwargs. Says what a listener is told, goes back to the level around, and returns what the function returns."""

_listener: Listener | None = None
_runner: Runner | None = None


def listen(listener: Listener, runner: Runner | None = None) -> None:
    """Tell ``listener``, and nobody else, of every entry and exit from now on; ``runner`` takes decorated functions."""
    global _listener, _runner
    _listener, _runner = listener, runner


def say(level: Level) -> None:
    """Tell whoever listens that a scope was left for ``level``."""
    if _listener is not None:
        _listener(level, None)


def stop_listening(listener: Listener) -> None:
    """Tell ``listener`` nothing any more; does nothing where another has taken its place."""
    global _listener, _runner
    if _listener == listener:
        _listener = _runner = None


def _go_in(around: Level, scope: Scope) -> Level:
    """Return the level of a scope that is entered in ``around`` for the first time."""
    global _levels_made
    _levels_made += 1
    if _levels_made > LEVELS_KEPT:
        _levels_made = 0
        forgotten: Level | None = around
        while forgotten is not None:
            forgotten.inside.clear()
            forgotten = forgotten.around
    path = f"{around.path}{SEPARATOR}{scope.name}" if around.path and scope.append else scope.name
    level = around.inside[scope.key] = Level(path, around)
    return level


def current_level(context: Context | None = None) -> Level:
    """Return the level at work here, or in another context."""
    return _get() if context is None else context.get(_current, _NO_SCOPE)


def current_path() -> str:
    """Return the path of the scope at work here; "" outside all."""
    return _get().path


def _look_for_torch() -> bool:
    """Return whether torch.compile is tracing; once torch is loaded, its own function takes this one's place."""
    global _is_compiling
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    if compiler is None:
        return False
    _is_compiling = compiler.is_dynamo_compiling
    return bool(_is_compiling())


_is_compiling: Callable[[], bool] = _look_for_torch
_look_for_torch()


class Scope:
    """Return a scope: what is allocated inside it, forward and backward, goes by its name.

    A context manager and a decorator for functions, coroutine functions and generator functions, in any code. A scope
    inside another is appended to it: ``encoder/attention``. Threads and tasks do not share scopes. One object can be
    entered any number of times. Inside a region that ``torch.compile`` traces it does nothing and breaks no graph when
    it is made there; the scope around the region holds for all of it.

    Args:
        name: What to call it; ``/`` separates levels.
        append: False lets the name stand alone inside other scopes.

    Raises:
        UsageError: ``name`` is no text, or empty.

    Example:
        >>> import gpuledger
        >>> with gpuledger.scope("encoder"):
        ...     hidden = [0] * 8
    """

    __slots__ = ("key", "name")

    def __init__(self, name: str, *, append: bool = True) -> None:
        if not isinstance(name, str) or not name:
            raise UsageError(f"scope {name!r}: expected a name", hint='For example: with gpuledger.scope("encoder"):')
        self.name = name
        self.key = name if append else (name,)

    def __repr__(self) -> str:
        return f"scope({self.name!r})" if self.append else f"scope({self.name!r}, append=False)"

    @property
    def append(self) -> bool:
        """Return whether it is appended to the scopes around it."""
        return self.key is self.name

    def __enter__(self) -> Scope:
        """Enter the scope."""
        if _is_compiling():
            return self
        around = _get()
        level = around.inside.get(self.key) or _go_in(around, self)
        _set(level)
        listener = _listener
        if listener is not None:
            listener(level, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        """Leave the scope."""
        if _is_compiling():
            return
        around = _get().around
        if around is None:  # entered in another context: a generator that somebody else closes
            return
        _set(around)
        listener = _listener
        if listener is not None:
            listener(around, None)

    def __call__(self, function: Function) -> Function:
        """Return ``function`` so that all of it runs in this scope; what awaits or yields leaves it meanwhile.

        Raises:
            UsageError: it is no function, or an asynchronous generator.
        """
        if not callable(function) or isinstance(function, type) or inspect.isasyncgenfunction(function):
            raise UsageError(
                f"scope {self.name!r}: can only decorate functions, coroutines and generators, not {function!r}",
                hint="Use `with gpuledger.scope(…):` inside it",
            )
        return _wrapped(function, self.name, self.append)


def _wrapped(function: Function, name: str, append: bool) -> Function:
    """Return a function of the same kind that runs in a scope."""
    shared, last = Scope(name, append=append), Level("", None)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal last
        if _is_compiling():
            with Scope(name, append=append):  # made here: the compiler enters no context manager made elsewhere
                return function(*args, **kwargs)
        around = _get()  # what `with` does, in half its time
        level = last
        if level.around is not around:
            level = last = around.inside.get(shared.key) or _go_in(around, shared)
        _set(level)
        if _runner is not None:
            return _runner(around, level, shared, function, args, kwargs)
        if _listener is not None:
            _listener(level, shared)
        try:
            return function(*args, **kwargs)
        finally:
            _set(around)
            say(around)

    @functools.wraps(function)
    def generating(*args: Any, **kwargs: Any) -> Any:
        return (yield from _in_pieces(Scope(name, append=append), function(*args, **kwargs)))

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return await _awaited_in_pieces(Scope(name, append=append), function(*args, **kwargs))

    wrapper: Any = generating if inspect.isgeneratorfunction(function) else called
    if inspect.iscoroutinefunction(function):
        wrapper = awaited
    return wrapper  # type: ignore[no-any-return]  # of the same kind, which no annotation can say


def _in_pieces(scope: Scope, inner: Any) -> Generator[Any, Any, Any]:
    """Run a generator or coroutine, in the scope while it runs and outside while it waits; return what it returns."""
    resume, value = inner.send, None
    while True:
        with scope:
            try:
                yielded = resume(value)
            except StopIteration as stop:
                return stop.value
        try:
            value, resume = (yield yielded), inner.send
        except GeneratorExit:
            with scope:
                inner.close()
            raise
        except BaseException as error:
            value, resume = error, inner.throw


_awaited_in_pieces = types.coroutine(_in_pieces)

scope = Scope
