"""Observe calls of a Python function in place, without a wrapper.

The function object stays the same; only its code object is replaced by one compiled from the function's own source,
with calls of an observer at the beginning and the end. The new code has the file name, lines and columns of the old
one. So tracebacks, warnings, ``logging`` and the recursion limit are unchanged, and existing references to the function
(a bound ``model.__call__``, ``torch.fx``, a wrapper of the program) are observed, too.

``torch.compile`` traces the original body.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import os
import threading
import tokenize
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from gpuledger.collect.adapter import dynamo
from gpuledger.collect.adapter.observer import OBSERVER, Observer, Observers, observe

_FUTURE_FLAGS = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


class CannotInstrumentError(Exception):
    """A function's code cannot be replaced. The message says why."""


class Observation:
    """One observer of one function, from construction until :meth:`remove`.

    Args:
        function: A function written in Python, with its source in a file.
        observer: The callbacks around it.
        outermost: Enter before all installed observers, and leave after them.
        among: A list to which it is added before it is installed. So it can be removed if a signal handler of the
            program raises meanwhile.

    Raises:
        CannotInstrumentError: the source is missing or differs from the compiled code, or it is not a plain function.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        observer: Observer,
        *,
        outermost: bool = False,
        among: list[Observation] | None = None,
    ) -> None:
        self._observer: Observer | None = observer
        with _exclusive:
            self._site = _site_of(function, only_fails=observer.only_fails)
            if among is not None:
                among.append(self)
            self._site.change(observer, lambda others: [observer, *others] if outermost else [*others, observer])

    def remove(self) -> None:
        """Remove the observer. Calls in progress still end with it. If this fails, call it again."""
        observer = self._observer
        if observer is not None:
            with _exclusive:
                self._site.change(observer, lambda others: [other for other in others if other is not observer])
            self._observer = None


def remove_all(observations: list[Observation]) -> None:
    """Remove all observers. Those that could not be removed stay in the list."""
    while observations:
        observations[-1].remove()
        observations.pop()


class _Site:
    """A function that can be observed, with its current observers.

    Its observed code is one object, whoever observes: code that ``torch.compile`` makes in the meantime is valid only
    while the functions that it calls have the code objects of then. So is that for observers that only want to know
    when the function raises.
    """

    def __init__(self, function: FunctionType) -> None:
        self._function = function
        self._plain = self._current = function.__code__
        self.observers = Observers()
        self._codes: dict[bool, CodeType] = {}
        self._compiled_with: CodeType | None = None
        """The function's code when it was changed for the first time after the program's first code was compiled."""

    @property
    def keeps_observed_code(self) -> bool:
        """Return whether the observed code stays without an observer. The program's first code was compiled with it."""
        observed = self._codes.get(False)
        is_observed = self._function.__code__ is self._current is observed
        return is_observed and self._compiled_with in (None, observed) and dynamo.compiled_frames() > 0

    def change(self, observer: Observer, chosen: Callable[[list[Observer]], list[Observer]]) -> None:
        """Replace the list of observers that ``observer`` belongs to. Without any, the original code is restored.

        It is not restored if the program's first code was compiled while the function was observed: that code would be
        compiled again.
        """
        seen = self.observers
        if self._function.__code__ is not self._current:  # another tool has replaced the code meanwhile: leave it
            seen.installed, seen.failing, self._current, self._compiled_with = [], [], self._plain, None
            if self._function.__code__ is not self._plain:
                if chosen([]):
                    raise CannotInstrumentError(f"{self._function.__qualname__} was replaced by the program")
                return
        before = seen.failing if observer.only_fails else seen.installed
        after = chosen(before)
        if not (after or before):  # an observer was removed twice
            return
        installed, failing = (seen.installed, after) if observer.only_fails else (after, seen.failing)
        code = self._code_for(installed, failing)
        dynamo.skip_as(self._current, code)
        # in one statement, in which no other thread and no signal handler runs
        seen.installed, seen.failing, self._current, self._function.__code__ = installed, failing, code, code

    def _code_for(self, installed: list[Observer], failing: list[Observer]) -> CodeType:
        """Return the code for these observers, or the one that the program's first code was compiled with."""
        if not dynamo.compiled_frames():
            self._compiled_with = None
        elif self._compiled_with is None:
            self._compiled_with = self._current
        kept = self._compiled_with
        if installed or (kept is not None and kept is self._codes.get(False)):
            return self.code(only_fails=False)
        if failing or (kept is not None and kept is self._codes.get(True)):
            return self.code(only_fails=True)
        return self._plain

    def code(self, *, only_fails: bool) -> CodeType:
        """Return the observed code, or that for observers that only want to know when the function raises.

        Raises:
            CannotInstrumentError: it cannot be made.
        """
        made = self._codes.get(only_fails)
        if made is None:
            function = self._function
            plain = FunctionType(self._plain, function.__globals__, function.__name__, None, function.__closure__)
            plain.__module__, plain.__qualname__ = function.__module__, function.__qualname__
            template = _compile_observed(plain, only_fails=only_fails)
            made = self._codes[only_fails] = _with_observer(template, self.observers)
        return made


_sites: dict[FunctionType, _Site] = {}
_exclusive = threading.RLock()
"""One thread at a time creates or changes a site. Reentrant for signal handlers."""


def _renew_lock() -> None:
    """Replace the lock in a forked child. The parent's threads, which can hold it, do not exist there."""
    global _exclusive
    _exclusive = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def _site_of(function: Callable[..., Any], *, only_fails: bool = False) -> _Site:
    """Return the site of a function, with its code for this kind of observers."""
    if not isinstance(function, FunctionType):
        raise CannotInstrumentError(f"{function!r} was not written in Python")
    site = _sites.get(function)
    if site is None:
        site = _Site(function)
    site.code(only_fails=only_fails)  # a function without it is not kept
    _sites[function] = site
    return site


def is_observed_for_good(function: Callable[..., Any]) -> bool:
    """Return whether a function keeps its observed code, so that observers come and go without a change of it."""
    site = _sites.get(function) if isinstance(function, FunctionType) else None
    return site is not None and site.keeps_observed_code


# -- compiling ------------------------------------------------------------------------------------------------------


def _compile_observed(function: FunctionType, *, only_fails: bool) -> CodeType:
    """Return the function's code with the observer calls, before the observer constant is replaced."""
    plain = function.__code__
    if set(plain.co_freevars) - {"__class__"}:
        raise CannotInstrumentError(f"{function.__qualname__} has variables of a function around it")
    source = _source_of(function)
    (tree, definition), (_, again) = _parse(function, source), _parse(function, source)
    if not _same(_compiled(tree, plain), plain):
        raise CannotInstrumentError(f"{plain.co_filename}: line {plain.co_firstlineno} is not what was compiled")
    if not observe(definition, None if only_fails else again.body, has_torch="torch" in function.__globals__):
        raise CannotInstrumentError(f"{definition.name} does nothing")
    observed = _compiled(tree, plain)
    if observed.co_freevars != plain.co_freevars or _signature(observed) != _signature(plain):
        raise CannotInstrumentError(f"{function.__qualname__} changed its signature")
    return _with_nested_of(plain, observed)


def _source_of(function: FunctionType) -> str:
    """Return a module's source with the function alone at its own lines and columns, inside its class if it has one."""
    code = function.__code__
    around = code.co_qualname.rpartition(".")[0].rpartition(".")[2]
    try:
        with tokenize.open(code.co_filename) as file:
            lines = file.readlines()
        block = "".join(inspect.getblock(lines[code.co_firstlineno - 1 :]))
    except (OSError, SyntaxError, ValueError, IndexError) as error:
        raise CannotInstrumentError(f"{Path(code.co_filename).name}: {error}") from error
    before = code.co_firstlineno - 1
    return "\n" * (before - 1) + f"class {around}:\n{block}" if around else "\n" * before + block


def _parse(function: FunctionType, source: str) -> tuple[ast.Module, ast.FunctionDef]:
    """Return a module that contains the function, and the function in it."""
    code = function.__code__
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise CannotInstrumentError(f"{Path(code.co_filename).name}: {error}") from error
    definition = tree.body[0].body[0] if isinstance(tree.body[0], ast.ClassDef) else tree.body[0]
    if not isinstance(definition, ast.FunctionDef) or definition.name != code.co_name:
        raise CannotInstrumentError(f"no plain function {code.co_name} where it was compiled from")
    imported = _imported_names(function)
    if imported:
        tree.body.insert(0, ast.fix_missing_locations(ast.Import([ast.alias(name) for name in imported])))
    return tree, definition


def _imported_names(function: FunctionType) -> list[str]:
    """Return the imported global names: modules, functions, classes. Python compiles calls on them differently."""
    own = function.__module__
    found = [(name, function.__globals__.get(name)) for name in function.__code__.co_names]
    named = [(name, value, getattr(value, "__module__", None)) for name, value in found if hasattr(value, "__name__")]
    return [name for name, value, module in named if isinstance(value, ModuleType) or module not in (None, own)]


def _compiled(tree: ast.Module, like: CodeType) -> CodeType:
    """Return the code of the only function in ``tree``."""
    try:
        flags = like.co_flags & _FUTURE_FLAGS
        code: CodeType = compile(tree, like.co_filename, "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise CannotInstrumentError(f"{like.co_qualname}: {error}") from error
    function = _nested(code, like.co_name)
    if function is None:
        raise CannotInstrumentError(f"{like.co_qualname}: Python compiles it to no code of its own")
    return function.replace(co_qualname=like.co_qualname)


def _nested(code: CodeType, name: str) -> CodeType | None:
    """Return the code of a function in that of a module or class, which since Python 3.14 has annotations, too."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    found = (one if one.co_name == name else _nested(one, name) for one in inner)
    return next((one for one in found if one is not None), None)


def _with_nested_of(plain: CodeType, observed: CodeType) -> CodeType:
    """Return observed code with the code objects of the plain code's nested functions, which are equal to its own.

    What ``torch.compile`` knows of a function is kept in its code object.
    """
    nested = {one: one for one in plain.co_consts if isinstance(one, CodeType)}
    same = [nested.get(one, one) if isinstance(one, CodeType) else one for one in observed.co_consts]
    return observed.replace(co_consts=tuple(same))


def _same(one: CodeType, other: CodeType) -> bool:
    return (one.co_code, _constants(one), one.co_names, one.co_varnames, one.co_freevars) == (
        other.co_code,
        _constants(other),
        other.co_names,
        other.co_varnames,
        other.co_freevars,
    )


def _constants(code: CodeType) -> list[tuple[type, Any]]:
    """Return the constants of a function, except functions nested in it."""
    return [(type(one), one) for one in code.co_consts if not isinstance(one, CodeType)]


def _signature(code: CodeType) -> tuple[int, ...]:
    return code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags


def _with_observer(template: CodeType, observer: Observer) -> CodeType:
    constants = tuple(observer if constant == OBSERVER else constant for constant in template.co_consts)
    return template.replace(co_consts=constants)
