"""Docstrings use the words of the glossary, as the pages do; names of the code are allowed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from folders import ROOT
from plain_words import unplain_words

PACKAGE = ROOT / "src" / "gpuledger"
PLAIN = (
    *("cards/", "cli/", "formats/", "live/", "operator_key.py", "redact.py", "services/", "simulate/"),
    *(
        "analyze/memory/",
        "analyze/operator_work/",
        "analyze/posting/",
        "analyze/samples/",
        "analyze/step/",
        "analyze/view/",
    ),
    *("collect/adapter/", "collect/launch/", "collect/sampling/", "ops/exchange/", "report/html/"),
    *("ops/database/", "ops/measure/", "ops/predict/", "ops/totals/", "ops/workloads/"),
    *("report/base/", "report/json/", "report/text/"),
)
"""Beginnings of modules with plain docstrings. Only ever extended."""
NAMES = re.compile(
    r"(?:a |each |last )?readings?|cards?|child(?:ren)?|journals?|accounts?|or else|else|random order|shelf|tell|"
    r"lived to|specimens?",
    re.IGNORECASE,
)
"""Terms of the code: processes, files and classes."""
ARGUMENT = re.compile(r"^ +\w+(?:, \w+)*:", re.MULTILINE)


def docstrings_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of the docstrings of a module, also of its values; without names of arguments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, ARGUMENT.sub("", node.value.value)


def unplain_docstrings(path: Path) -> list[str]:
    """Return line and words of the docstrings in a module that have words of the list."""
    found = []
    for line, text in docstrings_of(path.read_text(encoding="utf-8")):
        words = [str(word) for word in unplain_words(text) if not NAMES.fullmatch(word.found)]
        found += [f"{line}: {', '.join(words)}"] if words else []
    return found


def test_docstrings_have_plain_words() -> None:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).as_posix().startswith(PLAIN)]
    assert len(paths) > 100
    found = {path.relative_to(PACKAGE).as_posix(): words for path in paths if (words := unplain_docstrings(path))}
    assert found == {}


@pytest.mark.parametrize(
    ("docstring", "words"),
    [
        ("Return what the database lacks.", 2),
        ("Return the records.\n\n    Args:\n        tell: Called with the card.", 0),
        ("Return the models of a virtual GPU, such as it is.", 2),
    ],
)
def test_unplain_docstrings_are_found(docstring: str, words: int, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(f'def one():\n    """{docstring}"""\n')
    found = unplain_docstrings(tmp_path / "one.py")
    assert sum(one.count("': say") for one in found) == words
