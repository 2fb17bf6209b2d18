"""Find a program's counters in its syntax tree, and change how they are increased and compared.

A counter is the first variable of a ``for`` loop, or a number that is increased by ``+=``. Only those that the program
compares are changed. Lines and columns of the other code do not change.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from contextlib import contextmanager

from gpuledger.simulate.rest.later import COMPARISONS

ITEMS, COUNTED, COMPARED = "__gpuledger_items__", "__gpuledger_counted__", "__gpuledger_compared__"
LEAVES = "__gpuledger_leaves__"
"""Names of the functions that changed code calls."""
_MIRRORED = {"Lt": "Gt", "LtE": "GtE", "Gt": "Lt", "GtE": "LtE", "Eq": "Eq", "NotEq": "NotEq"}
_PLAIN = (
    ast.Constant, ast.Name, ast.Attribute, ast.BinOp, ast.operator, ast.expr_context, ast.Tuple, ast.List, ast.Set,
    ast.UnaryOp, ast.USub,
)  # fmt: skip
"""Parts of expressions that can be evaluated twice."""
_NUMBERS = (ast.Constant, ast.Name)
"""What a counter may be increased by."""
_ENDING, _GOING_ON = ("GtE", "Gt", "Eq"), ("Lt", "LtE", "NotEq")
"""Comparisons of a counter that end a loop, and those with which it goes on."""


class CounterChanges:
    """Changes the counters of a file.

    Args:
        tree: The file's syntax tree.
        file: Its name.
    """

    def __init__(self, tree: ast.AST, file: str) -> None:
        self._file = file
        self._loops: list[int | None] = []
        counted = set(filter(None, map(_counter_in, ast.walk(tree))))
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and len(node.ops) == 1]
        sides = [name for node in nodes for side in (node.left, node.comparators[0]) for name in _names_in(side)]
        self._names = counted.intersection(sides)

    @property
    def around(self) -> int | None:
        """Return the loop that is changed; None outside of loops."""
        return next((loop for loop in reversed(self._loops) if loop is not None), None)

    @contextmanager
    def inside(self, loop: int | None) -> Iterator[None]:
        """Note that a loop's body is changed."""
        self._loops.append(loop)
        try:
            yield
        finally:
            self._loops.pop()

    def of_loop(self, node: ast.For | ast.While, loop: int) -> list[ast.stmt]:
        """Return the statement that counts an iteration, and tell what the loop iterates over."""
        if not isinstance(node, ast.For):
            return []
        name = _counter_in(node)
        of_items = [ast.Constant(loop), ast.Constant(name if name in self._names else "")]
        function = getattr(node.iter.func, "id", "") if isinstance(node.iter, ast.Call) else ""
        if isinstance(node.iter, ast.Call) and function in ("enumerate", "zip") and node.iter.args:
            shown = node.iter.args if function == "zip" else node.iter.args[:1]
            node.iter.args[: len(shown)] = [_of_items(of_items, one) for one in shown]
        else:
            node.iter = _of_items(of_items, node.iter)
        if name not in self._names:
            return []
        target = node.target.elts[0] if isinstance(node.target, ast.Tuple) else node.target
        return [_set_to(target, [*map(copy.deepcopy, of_items), _read(target)], node)]

    def increased(self, node: ast.AugAssign) -> ast.AST | list[ast.AST]:
        """Return a statement with ``+=``, and one that may increase the counter further."""
        name = _counter_in(node)
        if name not in self._names:
            return node
        loop = self._loops[-1] if self._loops else None
        given = [ast.Constant(loop), ast.Constant(name), _read(node.target), copy.deepcopy(node.value)]
        return [node, _set_to(node.target, given, node)]

    def compares(self, node: ast.Compare) -> bool:
        """Return whether a comparison has a counter on one side only, and nothing that is called on either."""
        return self._side_of(node) is not None

    def compared(self, node: ast.Compare, number: int) -> ast.Compare:
        """Return a comparison with a call in place of its counter."""
        side = self._side_of(node)
        left, right, how = node.left, node.comparators[0], type(node.ops[0]).__name__
        own, other = (right, left) if side else (left, right)
        (name,) = self._counters_in(own)
        place = f"{self._file}:{node.lineno}"
        said = [ast.Constant(_MIRRORED[how] if side else how), copy.deepcopy(other)]
        call = _call(COMPARED, [ast.Constant(number), ast.Constant(place), ast.Constant(name), own, *said], own)
        if side:
            node.comparators[0] = call
        else:
            node.left = call
        return node

    def end_loop(self, node: ast.If | ast.While) -> None:
        """Let the comparisons of counters tell when they end a loop: those of a ``while``, and those before a break.

        One that returns counts inside of a loop only, and one that raises does not count.
        """
        ends = isinstance(node, ast.If)
        if ends and not (isinstance(node.body[0], ast.Break) or (isinstance(node.body[0], ast.Return) and self._loops)):
            return
        both = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And) == ends:
            return
        for one in both:
            side = self._side_of(one) if isinstance(one, ast.Compare) else None
            if isinstance(one, ast.Compare) and side is not None:
                how = type(one.ops[0]).__name__
                how = _MIRRORED.get(how, how) if side else how
                if how in (_ENDING if ends else _GOING_ON):
                    own, other = (one.comparators[0], one.left) if side else (one.left, one.comparators[0])
                    (name,) = self._counters_in(own)
                    call = _call(LEAVES, [ast.Constant(name), own, ast.Constant(how), copy.deepcopy(other)], own)
                    one.left, one.comparators[0] = (one.left, call) if side else (call, one.comparators[0])

    def _side_of(self, node: ast.Compare) -> int | None:
        how = type(node.ops[0]).__name__
        if len(node.ops) != 1 or how not in COMPARISONS:
            return None
        both = (node.left, node.comparators[0])
        if not all(isinstance(part, _PLAIN) for side in both for part in ast.walk(side)):
            return None
        found = [len(self._counters_in(side)) for side in both]
        side = found.index(1) if sorted(found) == [0, 1] else None
        is_known = side is not None and _is_sum(both[side]) and (how in _MIRRORED or not side)
        return side if is_known else None

    def _counters_in(self, side: ast.expr) -> list[str]:
        return [name for name in _names_in(side) if name in self._names]


_SHRINKS = frozenset({"pop", "popleft", "popitem", "remove"})


def limited_containers(tree: ast.AST) -> set[str]:
    """Return the last names of containers that may have a limit, such as ``buffer`` of ``len(self.buffer) > 100``.

    The program compares their length, looks whether something is in them as in a cache, or takes something out.
    """
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts = (part for part in ast.walk(node) if isinstance(part, ast.Call) and part.args)
            found += [call.args[0] for call in parts if getattr(call.func, "id", "") == "len"]
            found += [right for how, right in zip(node.ops, node.comparators, strict=True) if _asks_for_member(how)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SHRINKS:
            found.append(node.func.value)
        elif isinstance(node, ast.Delete):
            found += [target.value for target in node.targets if isinstance(target, ast.Subscript)]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            found += [target for target in node.targets if ast.unparse(target) == ast.unparse(node.value.value)]
    return {str(getattr(one, "attr", getattr(one, "id", ""))) for one in found} - {""}


def _asks_for_member(how: ast.cmpop) -> bool:
    return isinstance(how, (ast.In, ast.NotIn))


def classes_in(tree: ast.AST) -> set[str]:
    """Return the names of the classes that a file defines."""
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _counter_in(node: ast.AST) -> str:
    """Return the name of a statement's counter; "" if it has none."""
    if isinstance(node, ast.For):
        target = node.target.elts[0] if isinstance(node.target, ast.Tuple) and node.target.elts else node.target
        return target.id if isinstance(target, ast.Name) else ""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.value, _NUMBERS):
        return ast.unparse(node.target) if isinstance(node.target, (ast.Name, ast.Attribute)) else ""
    return ""


def _names_in(side: ast.expr) -> list[str]:
    """Return the variables of an expression; of ``self.step``, the whole."""
    if isinstance(side, (ast.Name, ast.Attribute)):
        return [ast.unparse(side)]
    return [name for child in ast.iter_child_nodes(side) if isinstance(child, ast.expr) for name in _names_in(child)]


def _is_sum(side: ast.expr) -> bool:
    """Return whether an expression is a variable, or a sum or difference that grows like the first one."""
    if isinstance(side, ast.BinOp):
        return isinstance(side.op, (ast.Add, ast.Sub)) and _is_sum(side.left)
    return isinstance(side, (ast.Name, ast.Attribute))


def _of_items(of_items: list[ast.Constant], items: ast.expr) -> ast.expr:
    if isinstance(items, ast.Starred):
        return items
    return _call(ITEMS, [*map(copy.deepcopy, of_items), items], items)


def _read(target: ast.expr) -> ast.expr:
    read = copy.deepcopy(target)
    if isinstance(read, (ast.Name, ast.Attribute)):
        read.ctx = ast.Load()
    return read


def _call(name: str, given: list[ast.expr], place: ast.AST) -> ast.Call:
    return ast.fix_missing_locations(ast.copy_location(ast.Call(ast.Name(name, ast.Load()), given, []), place))


def _set_to(target: ast.expr, given: list[ast.expr], place: ast.AST) -> ast.Assign:
    made = ast.Assign([copy.deepcopy(target)], _call(COUNTED, given, place))
    return ast.fix_missing_locations(ast.copy_location(made, place))
