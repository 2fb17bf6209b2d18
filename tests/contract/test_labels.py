"""Every text in the source and in the report's scripts: labels, headings and notes use plain words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from folders import ROOT
from plain_words import unplain_words

PACKAGE = ROOT / "src" / "gpuledger"
NO_TEXT = re.compile(r"CREATE VIEW|body\{|\s+add sub mul div")
"""Beginnings of SQL, of styles, and of lists of operators."""
CODE = re.compile(r"<[^>]*>|\b\w+(?:\.\w+)+|\$\{[^}]*\}")
"""Tags, dotted names, and values in a script's text."""
KEPT = {
    "No joules",  # beginning of notes in runs of earlier versions
    "card-value number",  # classes of elements
    "ledger balance",
}
SCRIPT_TEXT = re.compile(r'"([^"\n]*)"|`([^`]*)`')


def texts_of_module(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of the strings in a module, without docstrings."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def texts_of_script(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of the strings in a script."""
    for number, line in enumerate(source.splitlines(), start=1):
        if not line.lstrip().startswith(("//", "*", "/*")):
            yield from ((number, found[1] or found[2] or "") for found in SCRIPT_TEXT.finditer(line))


def unplain_texts(folder: Path) -> list[str]:
    """Return the texts below a folder that have words of the list. Texts without a space are names."""
    found = []
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.js")]):
        texts = texts_of_module if path.suffix == ".py" else texts_of_script
        if "vendor" in path.parts:
            continue
        for line, text in texts(path.read_text(encoding="utf-8")):
            if " " not in text or text in KEPT or NO_TEXT.match(text):
                continue
            words = [str(word) for word in unplain_words(CODE.sub("X", text))]
            if words:
                found.append(f"{path.relative_to(folder)}:{line}: {text[:80]!r}: {', '.join(words)}")
    return found


def test_texts_have_plain_words() -> None:
    assert unplain_texts(PACKAGE) == []


def test_a_planted_word_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text('"""A docstring of cards."""\nLABELS = {"card": f"used by the {1} card"}\n')
    (tmp_path / "two.js").write_text("// a card\nconst title = `above the first reading of ${card.name}`;\n")
    found = unplain_texts(tmp_path)
    assert [one.partition(": ")[0] for one in found] == ["one.py:2", "two.js:2"]
