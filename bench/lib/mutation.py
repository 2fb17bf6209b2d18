"""Single-line defects of a Python source: what mutation testing plants, one at a time.

The operators are those of mutmut and cosmic-ray for numbers, comparisons, arithmetic, conditions, calls and returns.
Strings are left alone except those that choose a side: their wording has tests of its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
CALCULATED: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "/"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
EXCHANGED = {
    "min": "max",
    "any": "all",
    "minimum": "maximum",
    "floor": "ceil",
    "left": "right",
    "argmin": "argmax",
    "first": "last",
    "append": "extend",
    "zeros": "ones",
    "cumsum": "sort",
}
EXCHANGED |= {new: old for old, new in EXCHANGED.items()}
LARGE = 1000
"""Numbers from here on are doubled, as one more would hardly change them; others become one more."""
SIDES = ("left", "right")


@dataclass(frozen=True, order=True)
class Mutant:
    """One defect: in ``module`` (a path below the package), the text from ``begin`` to ``end`` becomes ``new``.

    ``begin`` and ``end`` count characters of the source; ``line`` is where ``begin`` is, from 1.
    """

    module: str
    line: int
    begin: int
    end: int
    old: str
    new: str
    operator: str

    def apply(self, source: str) -> str:
        """Return the source with the defect in it."""
        assert source[self.begin : self.end] == self.old, self
        return source[: self.begin] + self.new + source[self.end :]


def find_mutants(module: str, source: str) -> list[Mutant]:
    """Return every defect that the operators know of a module, in the order of its lines."""
    place = _Places(source)
    found = set()
    for node in _walk(ast.parse(source)):
        for begin, end, new, operator in _changes(node, place):
            old = source[begin:end]
            if old != new:
                found.add(Mutant(module, source.count("\n", 0, begin) + 1, begin, end, old, new, operator))
    return sorted(found)


class _Places:
    """Where nodes are in a source, in characters."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def of(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column_bytes: int) -> int:
        before = self._lines[line - 1].encode()[:column_bytes].decode()
        return self._starts[line - 1] + len(before)

    def between(self, left: ast.expr, right: ast.expr, sign: str) -> tuple[int, int] | None:
        """Return where an operator stands between two nodes; None where a comment makes that uncertain."""
        begin, end = self.of(left)[1], self.of(right)[0]
        word = r"\s+".join(map(re.escape, sign.split()))
        found = re.search(rf"\b{word}\b" if sign[0].isalpha() else word, self.source[begin:end])
        if found is None or "#" in self.source[begin:end]:
            return None
        return begin + found.start(), begin + found.end()


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run and are not text: no annotations, decorators, docstrings, messages or f-strings."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params") or isinstance(node, ast.Raise):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            yield child
            yield from _walk(child)


Change = tuple[int, int, str, str]


def _changes(node: ast.AST, place: _Places) -> Iterator[Change]:
    match node:
        case ast.Compare():
            yield from _compared(node, place)
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign() | ast.UnaryOp():
            yield from _calculated(node, place)
        case ast.Constant():
            yield from _constant(node, place)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name) as func) if name in EXCHANGED:
            end = place.of(func)[1]
            yield end - len(name), end, EXCHANGED[name], "another function"
        case ast.If() | ast.While() | ast.IfExp():
            begin, end = place.of(node.test)
            yield begin, end, f"not ({place.source[begin:end]})", "condition negated"
        case ast.Return(value=ast.expr() as value) if not _is_constant(value):
            yield *place.of(value), "None", "returns None"
        case ast.Assign(value=value) if not _is_constant(value):
            yield *place.of(value), "None", "assigned None"
        case ast.Expr(value=ast.Call()):
            yield *place.of(node), "pass", "call left out"
        case ast.Continue():
            yield *place.of(node), "break", "continue to break"
        case ast.Break():
            yield *place.of(node), "continue", "break to continue"


def _compared(node: ast.Compare, place: _Places) -> Iterator[Change]:
    for (left, right), sign in zip(pairwise([node.left, *node.comparators]), node.ops, strict=True):
        old, new = COMPARED[type(sign)]
        if where := place.between(left, right, old):
            yield *where, new, "comparison"


def _calculated(node: ast.BinOp | ast.BoolOp | ast.AugAssign | ast.UnaryOp, place: _Places) -> Iterator[Change]:
    match node:
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in CALCULATED:
            old, new = CALCULATED[type(sign)]
            if where := place.between(left, right, old):
                yield *where, new, "arithmetic"
        case ast.BoolOp(op=joined, values=values):
            old, new = ("and", "or") if isinstance(joined, ast.And) else ("or", "and")
            for left, right in pairwise(values):
                if where := place.between(left, right, old):
                    yield *where, new, "and, or"
        case ast.AugAssign(target=target, op=sign, value=value) if type(sign) in CALCULATED:
            old, new = CALCULATED[type(sign)]
            if where := place.between(target, value, f"{old}="):
                yield *where, f"{new}=", "arithmetic"
                yield *where, "=", "assigned only"
        case ast.UnaryOp(op=ast.Not() | ast.USub() as sign):
            begin = place.of(node)[0]
            yield begin, begin + (3 if isinstance(sign, ast.Not) else 1), "", "sign left out"


def _constant(node: ast.Constant, place: _Places) -> Iterator[Change]:
    if isinstance(node.value, bool):
        yield *place.of(node), str(not node.value), "constant"
    elif isinstance(node.value, int | float):
        more = node.value if abs(node.value) >= LARGE else 1
        yield *place.of(node), repr(node.value + more), "constant"
    elif node.value in SIDES:
        yield *place.of(node), repr(EXCHANGED[node.value]), "constant"


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
