"""Change the source of a program's own files: loops and calls that write ask first, ``float()`` may be a placeholder.

So do conditions with a modulo, and those on counters, unless they only decide whether something is printed, logged or
written, or end a loop.

A program's source is compiled with a call in front of each loop, and a test in front of each iteration. Functions with
the name or the mode of one that writes are passed to the watch before they are called. Positions of the other code do
not change. Loops without calls, of generators and of functions that others compile are left alone.
"""

from __future__ import annotations

import ast
import builtins
import copy
import itertools
import re
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.rest.counters import (
    COMPARED,
    COUNTED,
    ITEMS,
    LEAVES,
    CounterChanges,
    classes_in,
    limited_containers,
)

_BEGINS, _ENDS, _FLOAT = "__gpuledger_loop_begins__", "__gpuledger_loop_ends__", "__gpuledger_float__"
_CALLS, _REMAINDER = "__gpuledger_writer_called__", "__gpuledger_remainder__"
_WRITERS = re.compile(
    r"^(?!(?:is|has|can|should)_|save_for_(?:back|for)ward|save_on_cpu)(?:.*_)?(save|export|upload|push_to)"
    r"|(^|_)dump$|write_|_write|^to_(parquet|hdf|feather|file)|^im(save|write)$"
)
"""Names of functions that may write files without Python's ``open``. Those of autograd save in memory."""
_MODES = re.compile(r"[wax][bt+]*|rb?\+b?")
"""Modes of files that are written, as in ``h5py.File(path, "w")``."""
_REPORTS = re.compile(
    r"print|p?pprint|debug|info|warning|log(_\w+)?|add_(scalar|text|histogram)s?|set_(postfix|description)(_str)?|"
    r"append|write|flush|item|float|int|str|len|round|min|max|mean|sum|format|time|perf_counter|get_last_lr"
)
"""Names of functions that report, and of those with which a report is made. They need little memory."""
_AFTERWARDS: dict[str, Callable[..., Any]] = {
    _BEGINS: lambda _loop, _around, _last_line: None,
    _ENDS: lambda _loop: False,
    _CALLS: lambda function: function,
    _FLOAT: float,
    _REMAINDER: lambda _number, _name, left, right, _wanted: left % right,
    ITEMS: lambda _loop, _name, items: items,
    COUNTED: lambda _loop, _name, value, _by=None: value,
    COMPARED: lambda _number, _place, _name, left, _how, _right: left,
    LEAVES: lambda _name, left, _how, _right: left,
}
"""What the names in changed code mean without a watch."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_PLAIN = (ast.Constant, ast.Name, ast.Attribute, ast.BinOp, ast.operator, ast.expr_context)
"""Parts of expressions that can be evaluated twice."""
_COMPILED_BY_OTHERS = ("jit", "numba", "script", "kernel")
"""Parts of the names of decorators that read a function's bytecode or source."""


class ProgramWatch(Protocol):
    """Decides whether loops end, and whether a function that writes is called."""

    def loop_begins(self, loop: int, around: int | None, last_line: int) -> None:
        """Note that a loop begins, the loop around it in the same function, and its last line."""

    def loop_ends(self, loop: int) -> bool:
        """Return whether a loop ends before its next iteration."""

    def writer_called(self, function: Any) -> Any:
        """Return a function that may write, before it is called."""

    def remainder(self, number: int, name: str, left: object, right: object, wanted: object) -> object:
        """Return the result of a modulo that decides a condition, which holds with the wanted one."""

    def items(self, loop: int, name: str, items: object) -> object:
        """Return what a loop with a counter iterates over."""

    def counted(self, loop: int | None, name: str, value: object, by: object = None) -> object:
        """Return the value of a counter; ``by`` is what it was increased by with ``+=``."""

    def compared(self, number: int, place: str, name: str, left: object, how: str, right: object) -> object:
        """Return a counter that is compared, or the sum of one and another number."""

    def read(self, limited: set[str], classes: set[str]) -> None:
        """Note the names of containers that may have a limit, and those of the classes in a file."""

    def leaves(self, name: str, left: object, how: str, right: object) -> object:
        """Return the left side of a comparison of a counter that ends its loop."""


def install_changes(
    patches: Patches,
    is_own: Callable[[str], bool],
    watch: ProgramWatch | None = None,
    number: Callable[[Any], float] = float,
) -> None:
    """Change the files of the program that are compiled from now on.

    Args:
        patches: Restores everything.
        is_own: Returns whether a path is that of a file of the program.
        watch: Decides whether loops end, and what is called; by default, nothing asks.
        number: Stands for ``float``.
    """
    plain_compile, plain_code = builtins.compile, SourceFileLoader.get_code
    numbers = itertools.count()

    def compiled(source: Any, filename: Any, mode: str, flags: int = 0, *args: Any, **kwargs: Any) -> Any:
        if mode == "exec" and not flags & ast.PyCF_ONLY_AST and isinstance(source, (str, bytes)):
            name = str(filename)
            if is_own(name) and Path(name).is_file():
                source = _changed(source, filename, None if watch is None else numbers, watch)
        return plain_compile(source, filename, mode, flags, *args, **kwargs)

    def get_code(loader: Any, fullname: str) -> CodeType | None:
        path = loader.get_filename(fullname)
        if not is_own(path):
            return plain_code(loader, fullname)
        made: CodeType = compiled(loader.get_data(path), path, "exec", dont_inherit=True)  # not that of a cache
        return made

    for name, inert in _AFTERWARDS.items():
        setattr(builtins, name, inert)  # what is restored: changed code can still run, as in an atexit handler
    if watch is not None:
        patches.put(builtins, _BEGINS, watch.loop_begins)
        patches.put(builtins, _ENDS, watch.loop_ends)
        patches.put(builtins, _CALLS, watch.writer_called)
        patches.put(builtins, _REMAINDER, watch.remainder)
        patches.put(builtins, ITEMS, watch.items)
        patches.put(builtins, COUNTED, watch.counted)
        patches.put(builtins, COMPARED, watch.compared)
        patches.put(builtins, LEAVES, watch.leaves)
    patches.put(builtins, _FLOAT, number)
    patches.put(builtins, "compile", compiled)
    patches.put(SourceFileLoader, "get_code", get_code)


def _changed(
    source: str | bytes, filename: Any, numbers: itertools.count[int] | None, watch: ProgramWatch | None
) -> Any:
    """Return the changed tree of a program's source; the source if it is not valid. Without numbers, no loop asks."""
    try:
        tree = ast.parse(source, str(filename))
    except (SyntaxError, ValueError):
        return source  # compiling it raises this, as without gpuledger
    if watch is not None:
        watch.read(limited_containers(tree), classes_in(tree))
    return _Changes(numbers, not _has_own_float(tree), CounterChanges(tree, Path(str(filename)).name)).visit(tree)


def _has_own_float(tree: ast.AST) -> bool:
    """Return whether a program gives the name ``float`` to something else."""
    for node in ast.walk(tree):
        is_stored = isinstance(node, ast.Name) and node.id == "float" and not isinstance(node.ctx, ast.Load)
        names = (getattr(node, field, None) for field in ("arg", "name", "asname"))
        if is_stored or "float" in names:
            return True
    return False


class _Changes(ast.NodeTransformer):
    def __init__(self, numbers: itertools.count[int] | None, changes_float: bool, counters: CounterChanges) -> None:
        self._numbers = numbers
        self._changes_float = changes_float
        self._counters = counters

    def visit(self, node: ast.AST) -> Any:
        """Return a node with its changes. Generators and functions that others compile stay."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _is_foreign(node):
            return node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float":
            node.func.id = _FLOAT if self._changes_float else "float"
        if isinstance(node, (ast.For, ast.While)) and not _waits_for_others(node):
            return self._asking(node)
        if isinstance(node, ast.If) and (not _needs_memory(node) or _only_leaves(node)):
            return self._unasked(node)
        self.generic_visit(node)
        if self._numbers is not None and isinstance(node, ast.AugAssign):
            return self._counters.increased(node)
        if self._numbers is not None and isinstance(node, ast.Compare) and self._counters.compares(node):
            return self._counters.compared(node, next(self._numbers))
        if isinstance(node, (ast.Compare, ast.UnaryOp)) and _is_condition(node):
            return self._with_remainder(node)
        if self._numbers is not None and isinstance(node, ast.Call) and _may_write(node):
            asked = ast.Call(ast.Name(_CALLS, ast.Load()), [node.func], [])
            node.func = ast.fix_missing_locations(ast.copy_location(asked, node.func))
        return node

    def _unasked(self, node: ast.If | ast.While) -> Any:
        """Return a statement with its changes, but with conditions of its own that only tell when they end a loop."""
        if self._numbers is not None and (isinstance(node, ast.While) or _only_leaves(node)):
            self._counters.end_loop(node)
        numbers, self._numbers = self._numbers, None
        node.test = self.visit(node.test)
        self._numbers = numbers
        for statements in (node.body, node.orelse):
            changed = (self.visit(statement) for statement in statements)
            statements[:] = [one for many in changed for one in (many if isinstance(many, list) else [many])]
        return node

    def _with_remainder(self, node: ast.Compare | ast.UnaryOp) -> Any:
        """Return a condition with a call in place of its modulo."""
        division = node.left if isinstance(node, ast.Compare) else node.operand
        if self._numbers is None or not isinstance(division, ast.BinOp):
            return node
        wanted = copy.deepcopy(node.comparators[0]) if isinstance(node, ast.Compare) else ast.Constant(0)
        name = ast.Constant(ast.unparse(division.left))
        given = [ast.Constant(next(self._numbers)), name, division.left, division.right, wanted]
        call = ast.fix_missing_locations(ast.copy_location(ast.Call(ast.Name(_REMAINDER, ast.Load()), given, []), node))
        if isinstance(node, ast.Compare):
            node.left = call
        else:
            node.operand = call
        return node

    def _asking(self, node: ast.For | ast.While) -> Any:
        calls = any(isinstance(inner, ast.Call) for statement in node.body for inner in ast.walk(statement))
        number = next(self._numbers) if self._numbers is not None and calls else None
        with self._counters.inside(number):
            if isinstance(node, ast.While):
                self._unasked(node)
            else:
                self.generic_visit(node)
        if number is None:
            return node
        own, around = ast.Constant(number), ast.Constant(self._counters.around)
        last_line = ast.Constant(node.end_lineno or node.lineno)
        begins = ast.Call(ast.Name(_BEGINS, ast.Load()), [own, around, last_line], [])
        ends = ast.Call(ast.Name(_ENDS, ast.Load()), [own], [])
        before, question = ast.Expr(begins), ast.If(ends, [ast.Break()], [])
        for made in (before, question):
            ast.copy_location(made, node)
            ast.fix_missing_locations(made)
        counted = self._counters.of_loop(node, number)
        node.body[:0] = [question, *counted]
        return [before, node]


def _may_write(call: ast.Call) -> bool:
    """Return whether the name of a called function, or its second argument or ``mode``, says that it writes."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    modes = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    values = [one.value for one in modes if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return bool(_WRITERS.search(name)) or any(map(_MODES.fullmatch, values))


def _is_condition(node: ast.Compare | ast.UnaryOp) -> bool:
    """Return whether a node is ``a % b == c``, ``a % b != c`` with a plain number, or ``not a % b``."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not) and _is_division(node.operand)
    return (
        len(node.ops) == 1
        and isinstance(node.ops[0], (ast.Eq, ast.NotEq))
        and _is_division(node.left)
        and all(isinstance(part, _PLAIN) for part in ast.walk(node.comparators[0]))
    )


def _is_division(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and not isinstance(node.left, ast.Constant)


def _needs_memory(node: ast.If) -> bool:
    """Return whether a statement may do more than to report, and calls nothing that may write.

    A function that writes would end the simulation of the program.
    """
    parts = [inner for statement in (*node.body, *node.orelse) for inner in ast.walk(statement)]
    calls = [part for part in parts if isinstance(part, ast.Call)]
    names = [getattr(call.func, "attr", getattr(call.func, "id", "")) for call in calls]
    computes = any(isinstance(part, (ast.MatMult, ast.Continue, ast.Return)) for part in parts)
    return (computes or not all(map(_REPORTS.fullmatch, names))) and not any(map(_may_write, calls))


def _only_leaves(node: ast.If) -> bool:
    """Return whether a statement only ends a loop, a function or the program."""
    return len(node.body) == 1 and not node.orelse and isinstance(node.body[0], (ast.Break, ast.Return, ast.Raise))


def _waits_for_others(node: ast.For | ast.While) -> bool:
    """Return whether a loop is that of a coroutine without a known end, which others may wait for."""
    return isinstance(node, ast.While) and any(isinstance(inner, ast.Await) for inner in ast.walk(node))


def _is_foreign(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = " ".join(ast.unparse(decorator) for decorator in function.decorator_list)
    return any(part in names for part in _COMPILED_BY_OTHERS) or _is_generator(function)


def _is_generator(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, _SCOPES):
            waiting.extend(ast.iter_child_nodes(node))
    return False
