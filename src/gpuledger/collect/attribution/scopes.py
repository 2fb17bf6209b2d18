"""Scopes: user-defined names for regions of a program. Works with or without a recording; needs no torch.

The current scope is stored in a context variable, so every thread and every asyncio task has its own. During a
recording, a listener is called at each entry and exit. Without one, a scope costs two reads and two writes.
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
"""Maximum number of cached levels. Beyond that, the cache is cleared, except for the scopes that are entered now."""


class Level:
    """A scope together with the scopes around it.

    Attributes:
        around: The enclosing level; None for the outermost.
        inside: The nested levels that were entered before.
        piece: Token piece, set by the listener.
        noted_by: The listener that set ``piece``.
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
"""Restores the given level after a decorated function call."""
_levels_made = 0


Listener = Callable[[Level, Any], None]
"""Called on the thread in which the current scope changes, with the new level and the entered scope.

The scope is None if one was left.
"""

Runner = Callable[[Level, Level, Any, Any, Any, Any], Any]
"""Calls a decorated function.

Arguments: the enclosing level, the entered level, the scope, the function, args and kwargs. Notifies of both changes,
restores the enclosing level, and returns the function's result.
"""

_listener: Listener | None = None
_runner: Runner | None = None


def listen(listener: Listener, runner: Runner | None = None) -> None:
    """Call ``listener``, and no other, at every entry and exit from now on. ``runner`` calls decorated functions."""
    global _listener, _runner
    _listener, _runner = listener, runner


def say(level: Level) -> None:
    """Notify the listener that a scope was left for ``level``."""
    if _listener is not None:
        _listener(level, None)


def stop_listening(listener: Listener) -> None:
    """Remove a listener. Does nothing if another has replaced it."""
    global _listener, _runner
    if _listener == listener:
        _listener = _runner = None


def _go_in(around: Level, scope: Scope) -> Level:
    """Return the level of a scope that is entered in ``around`` for the first time."""
    global _levels_made
    _levels_made += 1
    if _levels_made > LEVELS_KEPT:
        _levels_made = 1
        forgotten: Level | None = around
        while forgotten is not None:
            forgotten.inside.clear()
            forgotten = forgotten.around
    path = f"{around.path}{SEPARATOR}{scope.name}" if around.path and scope.append else scope.name
    level = around.inside[scope.key] = Level(path, around)
    return level


def were_entered() -> bool:
    """Return whether the program has entered a scope."""
    return _levels_made > 0


def current_level(context: Context | None = None) -> Level:
    """Return the current level of this context, or of the given one."""
    return _get() if context is None else context.get(_current, _NO_SCOPE)


def current_path() -> str:
    """Return the path of the current scope; "" outside all scopes."""
    return _get().path


def _look_for_torch() -> bool:
    """Return whether torch.compile is tracing. Once torch is loaded, torch's own function replaces this one."""
    global _is_compiling
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    if compiler is None:
        return False
    _is_compiling = compiler.is_dynamo_compiling
    return bool(_is_compiling())


_is_compiling: Callable[[], bool] = _look_for_torch
_look_for_torch()


class Scope:
    """Return a scope: allocations, time and energy inside it are attributed to its name, in forward and in backward.

    A context manager, and a decorator for functions, coroutine functions and generator functions. Nested scopes are
    joined: ``encoder/attention``. Threads and tasks do not share scopes. One object can be entered any number of times.
    A scope created inside a region that ``torch.compile`` traces has no effect and causes no graph break; the scope
    around the region applies to all of it.

    Args:
        name: Name of the scope; ``/`` separates levels.
        append: If False, the name is not joined to the enclosing scopes.

    Raises:
        UsageError: ``name`` is not a string, or is empty.

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
        """Return whether the name is joined to the enclosing scopes."""
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
        if around is None:  # entered in another context: a generator that other code closes
            return
        _set(around)
        listener = _listener
        if listener is not None:
            listener(around, None)

    def __call__(self, function: Function) -> Function:
        """Return ``function`` wrapped to run in this scope. While it awaits or yields, the scope is left.

        Raises:
            UsageError: ``function`` is not a function, or is an asynchronous generator function.
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
            # created here because torch.compile cannot enter a context manager created outside the traced function
            with Scope(name, append=append):
                return function(*args, **kwargs)
        around = _get()  # the same as a `with` statement, in half the time
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
    """Run a generator or coroutine, with the scope entered while it runs and left while it waits. Return its result."""
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
