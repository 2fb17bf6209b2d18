"""Read an old ``SETME.py`` of MXNet's memory profiler: its literals are parsed, and nothing in it is executed."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path
from typing import Any

from gpuledger.analyze.keywords.keyword_file import (
    MAX_FILE_BYTES,
    NAME,
    RESERVED_GROUPS,
    SUBSTRING,
    Dictionary,
    Keyword,
    KeywordFile,
    KeywordGroup,
)
from gpuledger.errors import InputError
from gpuledger.files.reading import read_limited, reading

DICTIONARIES = {"layer_kw_dict": "layer", "data_struct_kw_dict": "data structure"}
EXPECTED = "expected_sum"
MAX_EXPECTED_GIB = 1 << 20


def read_setme(path: Path) -> KeywordFile:
    """Return the dictionaries of a ``SETME.py``, and its ``expected_sum`` (written in GiB).

    A keyword there is an exact part of the tag. A dictionary with the template's original value (a set with one text,
    on which the old script failed) is left out, with a note.

    Raises:
        InputError: it is not Python, has no dictionary, or a value is not a literal; the message has the line.
    """
    values = _literals(_parse(path), path)
    notes: list[str] = []
    found = []
    for variable, name in DICTIONARIES.items():
        line, value = values.get(variable, (0, None))
        if isinstance(value, set):
            notes.append(f"{path.name}: {variable} is an empty template (a set), so dictionary {name!r} was skipped.")
        elif value is not None:
            found.append(_dictionary(name, value, f"{path}: line {line}: {variable}"))
    if not found:
        raise InputError(
            f"{path}: the file does not define {' or '.join(DICTIONARIES)}",
            hint='For example data_struct_kw_dict = {"Workspace": ["workspace"]}',
        )
    return KeywordFile(tuple(found), _expected_bytes(path, *values.get(EXPECTED, (0, None))), tuple(notes))


def _parse(path: Path) -> ast.Module:
    with reading(path):
        source = read_limited(path, MAX_FILE_BYTES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about backslashes in the file
            return ast.parse(source.decode("utf-8-sig"))
    except SyntaxError as error:
        raise InputError(f"{path}: line {error.lineno}: not Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{path}: not Python: {error}") from error


def _literals(module: ast.Module, path: Path) -> dict[str, tuple[int, Any]]:
    """Return line and value of the variables that a SETME.py sets; ignores all other statements."""
    values: dict[str, tuple[int, Any]] = {}
    for node in module.body:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id in (*DICTIONARIES, EXPECTED):
                values[target.id] = (node.lineno, _literal(node.value, f"{path}: line {node.lineno}: {target.id}"))
    return values


def _literal(node: ast.expr, place: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise InputError(
            f"{place}: expected a literal value", hint="Write the value as a literal: the file is read, never executed"
        ) from error


def _dictionary(name: str, value: Any, place: str) -> Dictionary:
    if not isinstance(value, dict):
        raise InputError(f"{place}: expected a dictionary", hint='For example {"RNN": ["rnn"], "Embed": ["embed"]}')
    if not value:
        raise InputError(f"{place}: the dictionary is empty")
    return Dictionary(name, tuple(_group(group, keywords, place) for group, keywords in value.items()))


def _group(name: Any, value: Any, place: str) -> KeywordGroup:
    keywords = [value] if isinstance(value, str) else value
    if not _is_text(name) or name in RESERVED_GROUPS:
        raise InputError(f"{place}: {name!r:.40} cannot be used as a group's name")
    if not isinstance(keywords, list | tuple | set | frozenset) or not keywords:
        raise InputError(f"{place}: {name}: expected a list of keywords", hint=f'For example "{name}": ["keyword"]')
    if not all(_is_text(word) and word for word in keywords):
        raise InputError(f"{place}: {name}: a keyword must be a valid string with at least one letter")
    return KeywordGroup(name, tuple(Keyword(NAME, SUBSTRING, word) for word in keywords))


def _is_text(value: Any) -> bool:
    """Return whether a value is a string that UTF-8 can encode. A literal can also contain half a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _expected_bytes(path: Path, line: int, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_EXPECTED_GIB:
        raise InputError(f"{path}: line {line}: {EXPECTED}: expected a number of GiB, for example 7.5")
    return round(value * (1 << 30))
