"""Errors planted in gpuledger's own code: one statement at a time raises, the first time that it runs in a phase.

Modules are compiled with a question before each statement: is it this one's turn? So a walk over all places needs no
list, and finds new code by itself. Left out is what cannot fail: ``pass``, constants, and ``try`` itself.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any

PACKAGES = ("gpuledger.",)
"""Every module of gpuledger's: whichever of them runs inside the recorded program."""

_ASK = "__gpuledger_planted__"


@dataclass(frozen=True, order=True)
class Place:
    """A statement of a function."""

    module: str
    function: str
    line: int
    is_first: bool
    """Whether nothing of the function comes before it."""


@dataclass
class Plants:
    """Every place that was compiled, those that were reached, and the one that is to raise."""

    places: list[Place] = field(default_factory=list)
    reached: dict[tuple[int, str], None] = field(default_factory=dict)
    target: tuple[int, str] | None = None
    phase: Callable[[], str] | None = None

    def is_turn(self, number: int) -> bool:
        """Return whether this place is to raise now; asked before it runs."""
        if self.phase is None or (self.target is not None and self.target[0] != number):
            return False
        at = number, self.phase()
        if self.target is None:
            self.reached[at] = None
            return False
        if at == self.target:
            self.phase = None  # once
            return True
        return False


PLANTS = Plants()


class _Planter(ast.NodeTransformer):
    """Puts a question before every statement of every function, or only before the first that can fail."""

    def __init__(self, module: str, *, only_first: bool) -> None:
        self._module, self._only_first = module, only_first
        self._names: list[str] = []
        self._first = False

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._named(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        first, self._first = self._first, True
        self._named(node, planted=True)
        self._first = first
        return node

    def _named(self, node: Any, *, planted: bool = False) -> ast.AST:
        self._names.append(node.name)
        node.body = self._block(node.body) if planted else [self.visit(one) for one in node.body]
        self._names.pop()
        return node

    def _block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [one for statement in statements for one in self._asked(statement)]

    def _asked(self, statement: ast.stmt) -> list[ast.stmt]:
        is_left_out = _cannot_fail(statement) or (self._only_first and not self._first)
        asked = [] if is_left_out else [self._question(statement)]
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            return [*asked, self.visit(statement)]
        for name in ("body", "orelse", "finalbody"):
            if getattr(statement, name, None):
                setattr(statement, name, self._block(getattr(statement, name)))
        for handler in getattr(statement, "handlers", []):
            handler.body = self._block(handler.body)
        return [*asked, statement]

    def _question(self, statement: ast.stmt) -> ast.stmt:
        place = Place(self._module, ".".join(self._names), statement.lineno, self._first)
        self._first = False
        PLANTS.places.append(place)
        text = f"if {_ASK}.is_turn({len(PLANTS.places) - 1}): raise ZeroDivisionError('planted')"
        question = ast.parse(text).body[0]
        for node in ast.walk(question):
            if hasattr(node, "lineno"):
                ast.copy_location(node, statement)
        return question


def _cannot_fail(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Pass, ast.Global, ast.Nonlocal, ast.Try, ast.Break, ast.Continue)):
        return True
    if isinstance(statement, ast.Raise):  # raises anyhow
        return True
    if isinstance(statement, (ast.Return, ast.Expr)):
        return statement.value is None or isinstance(statement.value, (ast.Constant, ast.Name))
    return False


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module with the questions in it; nothing is kept on disk."""

    only_first = False

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = _Planter(fullname, only_first=self.only_first).visit(ast.parse(self.get_data(path)))
        code: CodeType = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[_ASK] = PLANTS
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, *, only_first: bool) -> None:
        self._only_first = only_first

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(PACKAGES):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = loader = _Loader(name, spec.loader.path)
            loader.only_first = self._only_first
        return spec


def plant(*, only_first: bool = False) -> None:
    """Have modules of gpuledger's that are imported from now on ask before each statement, or a function's first."""
    assert not any(name.startswith(PACKAGES) for name in sys.modules), "they are imported already"
    sys.meta_path.insert(0, _Finder(only_first=only_first))
