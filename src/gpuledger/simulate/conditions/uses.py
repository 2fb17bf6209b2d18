"""Find in a program's source what a condition decides: a branch, the end of a loop or function, or an assertion."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import CodeType, FrameType
from typing import TypeAlias, TypeGuard

Place: TypeAlias = tuple[int, int, int, int]
"""First line, last line, first column and last column of an expression."""


class Role(Enum):
    """What the truth of a condition leads to."""

    MORE = "runs more of the program than its opposite"
    LESS = "skips a part, or leaves a function"
    HOLDS = "passes a check"
    FAILS = "raises an exception"
    EITHER = "chooses between two branches"
    STAY = "continues a loop that has another end, too"
    LEAVE = "ends a loop that has another end, too"
    WITHIN = "continues a loop that has another end in the same condition"
    PAST = "ends a loop that has another end in the same condition"
    REPEAT = "continues a loop that has no other end"
    END = "ends a loop that has no other end"


@dataclass(frozen=True)
class ConditionUse:
    """The role of an expression's value, and the code around it as a key."""

    role: Role
    key: tuple[CodeType, Place]


_TESTS = (ast.If, ast.While, ast.IfExp, ast.Assert)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Module)
_ENDING = frozenset({"exit", "quit", "_exit"})
_CONVERSIONS = frozenset({"bool", "item", "any", "all"})
_PAIRS = (
    (Role.MORE, Role.LESS), (Role.HOLDS, Role.FAILS), (Role.STAY, Role.LEAVE), (Role.WITHIN, Role.PAST),
    (Role.REPEAT, Role.END),
)  # fmt: skip
_OPPOSITE = {role: other for pair in _PAIRS for role, other in (pair, pair[::-1])}
_MOST_FRAMES = 4
"""Callers of a function that returns a condition, which are looked at."""


class _Source:
    """A parsed file: its expressions by place, and the parent of each node."""

    def __init__(self, tree: ast.Module) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        self.by_place: dict[Place, ast.expr | ast.stmt] = {}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            if isinstance(node, (ast.expr, ast.If, ast.While, ast.Assert)):
                self.by_place.setdefault(_place_of(node), node)  # the outermost of those with the same place

    def expression_at(self, place: Place) -> ast.expr | None:
        """Return the expression of which the truth is needed at a place; None if that is not clear.

        Python gives a jump the place of its statement, unless the jump follows a comparison.
        """
        node = self.by_place.get(place)
        tests = [node.test] if isinstance(node, _TESTS) else []
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            tests = [test for generator in node.generators for test in generator.ifs]
        if not tests:
            return node if isinstance(node, ast.expr) else None
        operands = [found for test in tests for found in _operands(test)]
        others = [found for found in operands if not isinstance(found[0], ast.Compare)] or operands
        return others[0][0] if len({negated for _, negated in others}) == 1 else None


def _operands(test: ast.expr, negated: bool = False) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the operands of a test's ``not``, ``and`` and ``or``, and whether each is negated."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _operands(test.operand, not negated)
    elif isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _operands(value, negated)
    else:
        yield test, negated


def _place_of(node: ast.expr | ast.stmt) -> Place:
    return (node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0)


@cache
def _source_of(file: str) -> _Source | None:
    try:
        return _Source(ast.parse("".join(linecache.getlines(file))))
    except (SyntaxError, ValueError):
        return None


def use_of(frame: FrameType) -> ConditionUse | None:
    """Return what the value decides that a frame's current instruction gets; None if that is not known.

    Args:
        frame: Runs the instruction that needs the truth of a value: a jump, a comparison or a call.
    """
    opposite = False
    caller: FrameType | None = frame
    for _ in range(_MOST_FRAMES):
        if caller is None:
            return None
        found = _find(caller)
        if found is None:
            return None
        role, negated, key = found
        opposite ^= negated
        if role is not None:
            return ConditionUse(_OPPOSITE.get(role, role) if opposite else role, key)
        caller = caller.f_back
    return None


def _find(frame: FrameType) -> tuple[Role | None, bool, tuple[CodeType, Place]] | None:
    """Return the role of a value, whether it is negated before, and its key. The role is None if it is returned."""
    source = _source_of(frame.f_code.co_filename)
    place = _current_place(frame)
    node = source.expression_at(place) if source is not None and place is not None else None
    if source is None or place is None or node is None:
        return None
    top, negated, is_joined = _whole_condition(source, node)
    parent = source.parents.get(top)
    key = (frame.f_code, place)
    if isinstance(parent, ast.Return) or (isinstance(parent, ast.Lambda) and top is parent.body):
        return None, negated, key
    role = _role_in(source, parent, top, is_joined)
    if role is None and isinstance(parent, ast.Assign):
        named = _use_of_name(source, parent)
        if named is not None:
            role, further = named
            negated ^= further
    return None if role is None else (role, negated, key)


def _current_place(frame: FrameType) -> Place | None:
    for number, place in enumerate(frame.f_code.co_positions()):
        if number == frame.f_lasti // 2:
            first, last, left, right = place
            if first is None or last is None or left is None or right is None:
                return None
            return first, last, left, right
    return None


def _whole_condition(source: _Source, node: ast.expr) -> tuple[ast.expr, bool, bool]:
    """Return the condition that an expression is a part of, whether it is negated, and whether others have to hold."""
    negated = False
    joins: list[bool] = []
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        node, negated = node.operand, not negated
    while True:
        parent = source.parents.get(node)
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
            negated = not negated
            joins = [not is_and for is_and in joins]
        elif isinstance(parent, ast.BoolOp):
            joins.append(isinstance(parent.op, ast.And))
        elif not _converts(parent):
            return node, negated, any(joins)
        assert isinstance(parent, ast.expr)
        node = parent


def _converts(node: ast.AST | None) -> bool:
    """Return whether a node only converts a condition: ``bool(…)``, ``….item()``, or the name of such a method."""
    if isinstance(node, ast.Call):
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        return name in _CONVERSIONS
    return isinstance(node, ast.Attribute) and node.attr in _CONVERSIONS


def _role_in(source: _Source, parent: ast.AST | None, test: ast.expr, is_joined: bool) -> Role | None:
    if isinstance(parent, ast.comprehension) and test in parent.ifs:
        return Role.MORE
    if not _is_test(parent, test):
        return None
    if isinstance(parent, ast.While):
        return Role.WITHIN if is_joined else Role.REPEAT
    if isinstance(parent, ast.If):
        return _role_of_if(source, parent)
    return Role.EITHER if isinstance(parent, ast.IfExp) else Role.HOLDS


def _is_test(node: ast.AST | None, test: ast.expr) -> TypeGuard[ast.If | ast.While | ast.IfExp | ast.Assert]:
    return isinstance(node, _TESTS) and node.test is test


def _role_of_if(source: _Source, node: ast.If) -> Role:
    """Return what the truth of an ``if`` statement's test leads to."""
    leaves, other_leaves = _leaves(node.body), bool(node.orelse) and _leaves(node.orelse)
    if leaves == other_leaves:
        return Role.EITHER if node.orelse else Role.MORE
    ending = node.body[-1] if leaves else node.orelse[-1]
    loop = _loop_around(source, node)
    if isinstance(ending, ast.Raise):
        role = Role.FAILS
    elif loop is not None and isinstance(ending, (ast.Break, ast.Return)):
        role = Role.END if _is_endless(loop) else Role.LEAVE
    elif leaves and isinstance(ending, ast.Return) and _calls(node.body) > _calls([*node.orelse, *_rest(source, node)]):
        role = Role.MORE
    else:
        role = Role.LESS
    return role if leaves else _OPPOSITE[role]


def _leaves(body: list[ast.stmt]) -> bool:
    """Return whether statements leave a loop, a function or the program."""
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        function = last.value.func
        return (function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")) in _ENDING
    return isinstance(last, (ast.Return, ast.Raise, ast.Break, ast.Continue))


def _calls(body: list[ast.stmt]) -> int:
    """Return the number of calls and operators in statements, as a measure of their work."""
    return sum(isinstance(node, (ast.Call, ast.BinOp)) for statement in body for node in ast.walk(statement))


def _function_around(source: _Source, node: ast.AST) -> ast.AST:
    while not isinstance(node, _FUNCTIONS):
        node = source.parents[node]
    return node


def _rest(source: _Source, node: ast.stmt) -> list[ast.stmt]:
    """Return the statements of a function that follow a statement."""
    last = node.end_lineno or node.lineno
    inside = (other for other in ast.walk(_function_around(source, node)) if isinstance(other, ast.stmt))
    return [other for other in inside if other.lineno > last and _is_flat(other)]


def _is_flat(statement: ast.stmt) -> bool:
    return not hasattr(statement, "body")


def _end_of(node: ast.stmt) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


def _loop_around(source: _Source, node: ast.AST) -> ast.AST | None:
    while node in source.parents and not isinstance(node, _FUNCTIONS):
        node = source.parents[node]
        if isinstance(node, _LOOPS):
            return node
    return None


def _is_endless(loop: ast.AST | None) -> bool:
    """Return whether a loop has a constant condition, such as ``while True``."""
    return isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant)


def _use_of_name(source: _Source, node: ast.Assign) -> tuple[Role, bool] | None:
    """Return the role of the next test of a variable that an assignment sets, and whether it is negated there."""
    if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
        return None
    name = node.targets[0].id
    names = (other for other in ast.walk(_function_around(source, node)) if isinstance(other, ast.Name))
    reads = [other for other in names if other.id == name and (other.lineno, other.col_offset) > _end_of(node)]
    for read in sorted(reads, key=lambda read: (read.lineno, read.col_offset)):
        top, negated, is_joined = _whole_condition(source, read)
        role = _role_in(source, source.parents.get(top), top, is_joined)
        if role is not None:
            return role, negated
    return None
