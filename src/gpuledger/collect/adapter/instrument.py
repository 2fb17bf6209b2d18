"""Observe calls of a Python function in place: no wrapper, no frame and no name of ours stands in the program's way.

The function keeps its identity; only its code object is exchanged, for one compiled from the function's own source with
calls of an observer at its beginning and its end. The new code carries the file, the lines and the columns of the old
one. So tracebacks, warnings, ``logging`` and the recursion limit see what they see without us, and who holds the
function (a bound ``model.__call__``, ``torch.fx``, a wrapper of the program's) goes on holding the right one.

Where ``torch.compile`` traces such a function, it finds the unchanged body.
"""

from __future__ import annotations
import __future__

import ast
import copy
import inspect
import tokenize
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

_OBSERVER = "gpuledger: the observer stands here"
"""A constant of the compiled code, exchanged for the observer: so it needs no name that the program could see."""

_FUTURE_FLAGS = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)

_OBSERVED = f"""
if torch.compiler.is_dynamo_compiling():
    BODY
try:
    _gpuledger_token = {_OBSERVER!r}.enter()
except RecursionError:
    _gpuledger_token = None
except BaseException as _gpuledger_error:
    _gpuledger_token = None
    if not {_OBSERVER!r}.absorbs(_gpuledger_error):
        raise
try:
    OBSERVED_BODY
except BaseException:
    if _gpuledger_token is not None:
        try:
            {_OBSERVER!r}.fail(_gpuledger_token)
        except RecursionError:
            pass
        except BaseException as _gpuledger_error:
            if not {_OBSERVER!r}.absorbs(_gpuledger_error):
                raise
    del _gpuledger_token
    raise
"""
"""What a function's body becomes. At the recursion limit the observer is left out, and the program goes on."""

_LEAVE = f"""
_gpuledger_result = None
if _gpuledger_token is not None:
    try:
        {_OBSERVER!r}.leave(_gpuledger_token, _gpuledger_result)
    except RecursionError:
        pass
    except BaseException as _gpuledger_error:
        if not {_OBSERVER!r}.absorbs(_gpuledger_error):
            raise
return _gpuledger_result
"""
"""What a ``return`` becomes."""


class CannotInstrumentError(Exception):
    """A function's code cannot be exchanged; the message says why."""


def _nothing(*_: Any) -> None:
    """Do nothing."""


Absorbs = Callable[[BaseException], bool]
"""Called inside ``except`` with what our code has raised; returns whether the program goes on as if it had not."""


def absorbs_nothing(_: BaseException) -> bool:
    """Let every error go on."""
    return False


class Observer:
    """What is called around a function.

    Attributes:
        enter: Called with the function's parameters, in their order (``*args`` as a tuple, ``**kwargs`` as a dict),
            before its body. Returns a token, or None where neither of the others is to be called.
        leave: Called with the token and what the function returns.
        fail: Called with the token where the function raises. May follow ``leave``, where that raised.
        absorbs: Takes what any of them raises, such as :meth:`gpuledger.collect.adapter.guard.Guard.absorbs`.
        hands_over: Whether ``enter`` may put other observers in, which are to see the call that has just begun.
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


class Observation:
    """One observer in one function, from its making until :meth:`remove`.

    Args:
        function: A function that was written in Python, in a file.
        observer: What is called around it.
        outermost: Enters before all observers that are there, and leaves after them.

    Raises:
        CannotInstrumentError: its source is not there, or not what was compiled, or the function is no plain one.
    """

    def __init__(self, function: Callable[..., Any], observer: Observer, *, outermost: bool = False) -> None:
        self._observer: Observer | None = observer
        self._site = _site_of(function)
        self._site.change(lambda others: [observer, *others] if outermost else [*others, observer])

    def remove(self) -> None:
        """Take the observer out; calls under way still end with it. Where this fails, it can be called again."""
        observer = self._observer
        if observer is not None:
            self._site.change(lambda others: [other for other in others if other is not observer])
            self._observer = None


def remove_all(observations: list[Observation]) -> None:
    """Take all observers out; what could not be taken out stays in the list."""
    while observations:
        observations[-1].remove()
        observations.pop()


class _Site:
    """A function that can be observed, and who observes it."""

    def __init__(self, function: FunctionType) -> None:
        self._function = function
        self._plain = function.__code__
        self._template = _compile_observed(function)
        self.observers: list[Observer] = []
        self._current = self._plain

    def change(self, chosen: Callable[[list[Observer]], list[Observer]]) -> None:
        """Have other observers; the function's own code comes back with the last of them."""
        if self._function.__code__ is not self._current:  # somebody else has exchanged it meanwhile: theirs stays
            self.observers, self._current = [], self._plain
            if self._function.__code__ is not self._plain:
                if chosen([]):
                    raise CannotInstrumentError(f"{self._function.__qualname__} was replaced by the program")
                return
        observers = chosen(self.observers)
        if not observers:
            code = self._plain
        elif len(observers) == 1 and not observers[0].hands_over:
            code = _with_observer(self._template, observers[0])
        else:
            code = _with_observer(self._template, _all_of(self, observers[0].absorbs))
        self.observers, self._current, self._function.__code__ = observers, code, code  # all of it, or nothing


_sites: dict[FunctionType, _Site] = {}


def _site_of(function: Callable[..., Any]) -> _Site:
    if not isinstance(function, FunctionType):
        raise CannotInstrumentError(f"{function!r} was not written in Python")
    site = _sites.get(function)
    if site is None:
        site = _sites[function] = _Site(function)
    return site


def _all_of(site: _Site, absorbs: Absorbs) -> Observer:
    """Return one observer that does what all do that are in when it is called; the first is the outermost.

    Each deals with what it raises itself; ``absorbs`` is for all else.
    """

    def enter(*parameters: Any) -> list[tuple[Observer, Any]]:
        entered: list[tuple[Observer, Any]] = []
        asked: list[Observer] = []
        try:
            while (observer := _next(site.observers, asked)) is not None:
                asked.append(observer)
                token = _ask(observer, observer.enter, *parameters)
                if token is not None:
                    entered.append((observer, token))
        except BaseException:
            fail(entered)
            raise
        return entered

    def leave(entered: list[tuple[Observer, Any]], result: Any) -> None:
        while entered:
            observer, token = entered[-1]
            _ask(observer, observer.leave, token, result)
            entered.pop()

    def fail(entered: list[tuple[Observer, Any]]) -> None:
        while entered:
            observer, token = entered.pop()
            _ask(observer, observer.fail, token)

    return Observer(enter, leave, fail, absorbs=absorbs)


def _ask(observer: Observer, part: Callable[..., Any], *arguments: Any) -> Any:
    """Return what one part of an observer returns; None where it raises what the observer absorbs."""
    try:
        return part(*arguments)
    except RecursionError:
        return None
    except BaseException as error:
        if not observer.absorbs(error):
            raise
        return None


def _next(observers: list[Observer], asked: list[Observer]) -> Observer | None:
    """Return the first observer that was not asked yet: they may come and go meanwhile."""
    for observer in observers:
        if not any(observer is one for one in asked):
            return observer
    return None


# -- compiling ------------------------------------------------------------------------------------------------------


def _compile_observed(function: FunctionType) -> CodeType:
    """Return the function's code with calls of an observer that is still a text."""
    plain = function.__code__
    if set(plain.co_freevars) - {"__class__"}:
        raise CannotInstrumentError(f"{function.__qualname__} has variables of a function around it")
    tree, definition = _parse(function)
    if not _same(_compiled(tree, plain), plain):
        raise CannotInstrumentError(f"{plain.co_filename}: line {plain.co_firstlineno} is not what was compiled")
    _observe(definition, has_torch="torch" in function.__globals__)
    observed = _compiled(tree, plain)
    if observed.co_freevars != plain.co_freevars or _signature(observed) != _signature(plain):
        raise CannotInstrumentError(f"{function.__qualname__} changed its signature")
    return observed


def _parse(function: FunctionType) -> tuple[ast.Module, ast.FunctionDef]:
    """Return a module with the function at its own lines and columns, in its class where it has one."""
    code = function.__code__
    around = code.co_qualname.rpartition(".")[0]
    try:
        with tokenize.open(code.co_filename) as file:
            lines = file.readlines()
        block = "".join(inspect.getblock(lines[code.co_firstlineno - 1 :]))
        tree = ast.parse(f"class {around.rpartition('.')[2]}:\n{block}" if around else block)
    except (OSError, SyntaxError, ValueError, IndexError) as error:
        raise CannotInstrumentError(f"{Path(code.co_filename).name}: {error}") from error
    ast.increment_lineno(tree, code.co_firstlineno - (2 if around else 1))
    definition = cast("ast.ClassDef", tree.body[0]).body[0] if around else tree.body[0]
    if not isinstance(definition, ast.FunctionDef) or definition.name != code.co_name:
        raise CannotInstrumentError(f"no plain function {code.co_name} where it was compiled from")
    imported = _imported_names(function)
    if imported:
        tree.body.insert(0, ast.Import([ast.alias(name) for name in imported]))
    return ast.fix_missing_locations(tree), definition


def _imported_names(function: FunctionType) -> list[str]:
    """Return the global names that the function's module has imported: Python compiles calls on these another way."""
    own = function.__module__
    found = [(name, function.__globals__.get(name)) for name in function.__code__.co_names]
    return [
        name
        for name, value in found
        if isinstance(value, ModuleType) or (value is not None and getattr(value, "__module__", own) != own)
    ]


def _compiled(tree: ast.Module, like: CodeType) -> CodeType:
    """Return the code of the one function in ``tree``."""
    try:
        flags = like.co_flags & _FUTURE_FLAGS
        code: CodeType = compile(tree, like.co_filename, "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise CannotInstrumentError(f"{like.co_qualname}: {error}") from error
    while code.co_name != like.co_name:  # in the module, and in its class
        code = next(one for one in code.co_consts if isinstance(one, CodeType))
    return code.replace(co_qualname=like.co_qualname)


def _same(one: CodeType, other: CodeType) -> bool:
    return (one.co_code, one.co_names, one.co_varnames, one.co_freevars) == (
        other.co_code,
        other.co_names,
        other.co_varnames,
        other.co_freevars,
    )


def _signature(code: CodeType) -> tuple[int, ...]:
    return code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags


def _observe(function: ast.FunctionDef, *, has_torch: bool) -> None:
    """Put an observer around a function's body."""
    documented = isinstance(function.body[0], ast.Expr) and isinstance(function.body[0].value, ast.Constant)
    head, body = function.body[:documented], function.body[documented:]
    if not body:
        raise CannotInstrumentError(f"{function.name} does nothing")
    returned = [node for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    place: ast.AST = cast("ast.AST", returned[-1].value) if returned else body[-1]
    observed = _at(ast.parse(_OBSERVED), place).body
    gate, entering, observing = (cast("Any", statement) for statement in observed)
    gate.body = body
    call = entering.body[0].value
    call.args = [ast.copy_location(ast.Name(name, ast.Load()), place) for name in _parameters(function.args)]
    leaving = _Leaving(place).visit(ast.Module(copy.deepcopy(body), []))
    observing.body = [*leaving.body, *_leave(None, place)]
    function.body = [*head, *([gate] if has_torch else []), entering, observing]
    ast.fix_missing_locations(function)


def _parameters(arguments: ast.arguments) -> list[str]:
    kept = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    return [one.arg for one in kept if one is not None]


def _at(tree: ast.Module, place: ast.AST) -> ast.Module:
    """Return ``tree`` with every node where ``place`` is in the source."""
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            ast.copy_location(node, place)
    return tree


def _leave(value: ast.expr | None, place: ast.AST) -> list[ast.stmt]:
    """Return the statements that stand for ``return value``."""
    statements = _at(ast.parse(_LEAVE), place).body
    if value is not None:
        cast("ast.Assign", statements[0]).value = value
    return statements


class _Leaving(ast.NodeTransformer):
    """Turns every ``return`` of a function, but not of those inside it, into leaving."""

    def __init__(self, place: ast.AST) -> None:
        self._place = place

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        """Leave with what is returned."""
        return _leave(node.value, node.value or self._place)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Leave inner functions alone."""
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """Leave inner functions alone."""
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Leave inner classes alone."""
        return node


def _with_observer(template: CodeType, observer: Observer) -> CodeType:
    constants = tuple(observer if constant == _OBSERVER else constant for constant in template.co_consts)
    return template.replace(co_consts=constants)
