"""List every message of gpuledger: errors, hints and notes, as they stand in the source.

Usage: ``python tools/list_messages.py [FOLDER]``. Each line has the place, the kind and the text; ``{…}`` stands for a
value. Read the list as a user who does not know the tool: does each message say what happened, to what, and what to do?
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parents[1] / "src" / "gpuledger"
VALUE: Final = "{…}"
"""Stands for a value in a message."""
HELPS: Final = ("cli/", "integrations/pytest_plugin")
"""Modules with sentences that are helps, not notes of a run."""
LEAST_WORDS: Final = 4
"""A text of fewer words is no sentence."""
REASONS: Final = ("how", "problem", "reason", "what", "why")
"""Beginnings of the names of functions and variables with the words that a message inserts."""
SAYING: Final = frozenset({"add_note", "note", "say", "warn"})
"""Functions that print a line or write it into a run's notes."""


@dataclass(frozen=True, order=True)
class Message:
    """One text that a user can read.

    ``kind`` is error, hint, line (printed), note (a sentence kept in a run), or part (words that one of them inserts).
    """

    file: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {self.text}"


def list_messages(package: Path = PACKAGE) -> list[Message]:
    """Return the messages of every module below a folder, in the order of the source."""
    found: list[Message] = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        _remove_docstrings(tree)
        messages = {Message(name, *one) for one in _messages(tree, "")}
        found += sorted(one for one in messages if one.kind != "note" or not name.startswith(HELPS))
    return found


def _remove_docstrings(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant | ast.JoinedStr)


def _messages(node: ast.AST, kind: str) -> Iterator[tuple[int, str, str]]:
    """Give the messages in a tree as line, kind and text; ``kind`` is that of the call around it, "" outside one."""
    text = _text(node)
    if isinstance(node, ast.expr) and text is not None:
        if text.strip(VALUE + " .,:;()'"):
            words = len(text.split())
            is_sentence = words >= LEAST_WORDS and text.endswith(".")
            if is_sentence or words >= LEAST_WORDS - 1 or kind not in ("", "part"):
                found = "note" if is_sentence and kind in ("", "part") else kind
                if found:
                    yield node.lineno, found, text
            kind = kind and "part"
        for value in _inserted(node):
            yield from _messages(value, kind)
    elif isinstance(node, ast.Call):
        yield from _of_call(node, kind)
    elif isinstance(node, ast.IfExp):
        for branch in (node.body, node.orelse):
            yield from _messages(branch, kind)
    elif isinstance(node, ast.Compare | ast.Subscript):
        return
    else:
        kind = _kind_of(node) or kind
        for inner in ast.iter_child_nodes(node):
            yield from _messages(inner, kind)


def _kind_of(node: ast.AST) -> str:
    """Return the kind of the texts in a function or an assignment, which its name says; "" where it does not."""
    if isinstance(node, ast.FunctionDef):
        names = [node.name.strip("_")]
    elif isinstance(node, ast.Assign):
        names = [ast.unparse(one).lower() for one in node.targets]
    else:
        return ""
    if any("hint" in name for name in names):
        return "hint"
    if "message" in names:
        return "error"
    return "part" if any(name.startswith(REASONS) for name in names) else ""


def _inserted(node: ast.expr) -> Iterator[ast.expr]:
    """Give the expressions whose values a text has inside."""
    if isinstance(node, ast.JoinedStr):
        yield from (one.value for one in node.values if isinstance(one, ast.FormattedValue))
    elif isinstance(node, ast.BinOp):
        for one in (node.left, node.right):
            if _text(one) is None:
                yield one
            else:
                yield from _inserted(one)


def _of_call(node: ast.Call, kind: str) -> Iterator[tuple[int, str, str]]:
    name = ast.unparse(node.func).rpartition(".")[2]
    inner = "error" if name.endswith(("Error", "Warning")) else "line" if name in SAYING else ""
    if kind == "part":
        inner = ""  # of a call that makes a value of a message, such as ``", ".join(…)``
    for one in node.args:
        yield from _messages(one, inner)
    for keyword in node.keywords:
        if keyword.arg != "help":  # of an option
            yield from _messages(keyword.value, "hint" if keyword.arg == "hint" else inner)


def _text(node: ast.AST | None) -> str | None:
    """Return what an expression says, with a sign for each value; None where it is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_part(one) for one in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [_text(node.left), _text(node.right)]
        return None if parts == [None, None] else "".join(VALUE if part is None else part for part in parts)
    return None


def _part(node: ast.expr) -> str:
    return VALUE if isinstance(node, ast.FormattedValue) else _text(node) or VALUE


def main(words: list[str]) -> int:
    """Print the list and return the exit status."""
    messages = list_messages(PACKAGE / words[0] if words else PACKAGE)
    for message in messages:
        print(message)
    print(f"{len(messages):,} messages", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
