"""Find out from its source whether a program handles an error that is raised where it runs now.

These are out-of-memory errors, and ``StopIteration`` of a data loader.
"""

from __future__ import annotations

import ast
import dis
import linecache
import re
from functools import cache
from types import CodeType, FrameType

import torch

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_NOT_SEARCHED = ("/gpuledger/", "/torch/")
"""Parts of the paths of files that pass such an error on."""
_BROAD = frozenset({"RuntimeError", "Exception", "BaseException"})
_EXITS = frozenset({"exit", "_exit", "quit", "abort"})
_FOR_ITER, _CALL = dis.opmap["FOR_ITER"], dis.opmap["CALL"]
_MEMORY = re.compile(r"out.?of.?memory|\boom\b|oom_|_oom|reduce_batch|empty_cache", re.IGNORECASE)
"""What the source of a handler has that asks whether an error is one of memory, as a library's function may do."""


def handles_memory_error(frame: FrameType | None) -> bool:
    """Return whether an out-of-memory error in a frame would be handled there, or in a frame that called it.

    A handler counts if it names the error. One of ``RuntimeError``, of ``Exception`` or of everything counts if its
    source is about memory. A handler that always raises again or ends the program does not count.
    """
    while frame is not None:
        for handlers in _handlers_around(frame):
            found = _outcome(handlers, frame)
            if found is not None:
                return found
        frame = frame.f_back
    return False


def expects_the_end(frame: FrameType) -> bool:
    """Return whether code that asks an iterator for its next item knows what to do without one.

    So does a loop, ``next(items, default)``, and what handles ``StopIteration``.
    """
    if _asks_with_default(frame.f_code, frame.f_lasti):
        return True
    return any(
        _name(kind) == "StopIteration"
        for handlers in _handlers_around(frame)
        for handler in handlers
        for kind in _kinds(handler)
    )


@cache
def _asks_with_default(code: CodeType, place: int) -> bool:
    """Return whether an instruction is that of a ``for`` loop, or a call of ``next`` with two arguments."""
    if code.co_code[place] == _FOR_ITER:
        return True
    instructions = list(dis.get_instructions(code))
    call = next(one for one in instructions if one.offset == place)
    where = _start(call)
    return (
        call.opcode == _CALL
        and call.arg == 2
        and any(one.argval == "next" and _start(one) == where for one in instructions)
    )


def _start(instruction: dis.Instruction) -> tuple[int | None, int | None]:
    """Return line and column at which the expression of an instruction starts."""
    positions = instruction.positions
    return (None, None) if positions is None else (positions.lineno, positions.col_offset)


def _kinds(handler: ast.ExceptHandler) -> list[ast.expr | None]:
    """Return the classes of errors that a handler catches; None for all of them."""
    return list(handler.type.elts) if isinstance(handler.type, ast.Tuple) else [handler.type]


def _outcome(handlers: tuple[ast.ExceptHandler, ...], frame: FrameType) -> bool | None:
    """Return whether one of the handlers handles the error; None if it goes on to the next ones."""
    for handler in handlers:
        kinds = _kinds(handler)
        is_named = any(_is_memory_error(kind, frame) for kind in kinds)
        if not is_named and not any(kind is None or _name(kind) in _BROAD for kind in kinds):
            continue
        last = handler.body[-1]
        if isinstance(last, ast.Raise):
            return None
        if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and _name(last.value.func) in _EXITS:
            return False
        return is_named or bool(_MEMORY.search("\n".join(map(ast.unparse, handler.body))))
    return None


def _is_memory_error(kind: ast.expr | None, frame: FrameType) -> bool:
    """Return whether a handler's class is the error itself, by its name or by that of a global of the program."""
    if "OutOfMemory" in _name(kind):
        return True
    known = frame.f_globals.get(kind.id) if isinstance(kind, ast.Name) else None
    return known is torch.OutOfMemoryError or (isinstance(known, tuple) and torch.OutOfMemoryError in known)


def _name(node: ast.expr | None) -> str:
    """Return the last part of a name such as ``torch.cuda.OutOfMemoryError``."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _handlers_around(frame: FrameType) -> list[tuple[ast.ExceptHandler, ...]]:
    """Return the handlers of each ``try`` around the line that runs, the innermost first."""
    code, line = frame.f_code, frame.f_lineno
    return [handlers for first, last, handlers in _tries_of(code) if first <= line <= last]


_Try = tuple[int, int, tuple[ast.ExceptHandler, ...]]
"""First and last line of what is tried, and the handlers of its errors."""


@cache
def _tries_of(code: CodeType) -> tuple[_Try, ...]:
    """Return each ``try`` of a function or module, the innermost first."""
    file = code.co_filename
    if file.startswith("<") or any(part in file for part in _NOT_SEARCHED):
        return ()
    return _tries_in(file).get((code.co_name, code.co_firstlineno), ())


@cache
def _tries_in(file: str) -> dict[tuple[str, int], tuple[_Try, ...]]:
    """Return each ``try`` of a file, by name and first line of the function around it."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}  # what runs is not what the file has now
    scopes: list[tuple[tuple[str, int], ast.AST]] = [(("<module>", 1), tree)]
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            scopes.append(((node.name, first), node))
    return {key: tuple(reversed(list(_tries_under(scope)))) for key, scope in scopes}


def _tries_under(scope: ast.AST) -> list[_Try]:
    """Return each ``try`` of a scope without those of scopes inside it, the outermost first."""
    found: list[_Try] = []
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Try):
            found.append((node.body[0].lineno, node.body[-1].end_lineno or 0, tuple(node.handlers)))
        if isinstance(node, (ast.With, ast.AsyncWith)):
            found += _suppressed(node)
        if not isinstance(node, _SCOPES):
            waiting += ast.iter_child_nodes(node)
    return found


def _suppressed(node: ast.With | ast.AsyncWith) -> list[_Try]:
    """Return ``with suppress(…)`` as the ``try`` that it stands for."""
    calls = [one.context_expr for one in node.items if isinstance(one.context_expr, ast.Call)]
    last = node.body[-1].end_lineno or 0
    return [
        (node.body[0].lineno, last, (ast.ExceptHandler(ast.Tuple(call.args, ast.Load()), None, [ast.Pass()]),))
        for call in calls
        if _name(call.func) == "suppress"
    ]
