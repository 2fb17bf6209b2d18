"""Read a journal: join all readable parts, and check them against the journal's columns. The input is untrusted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.errors import InputError
from gpuledger.files.reading import parse_json, reading
from gpuledger.files.shapes import Either, Fields, ListOf, Shape, check_shape
from gpuledger.model.journal import log
from gpuledger.model.journal.columns import COLUMNS
from gpuledger.model.journal.journal import JOURNAL_VERSION, TEXTS, Part
from gpuledger.model.journal.log import journal_files, read_log

if TYPE_CHECKING:
    from gpuledger.files.npz import Unpacked


@dataclass(frozen=True)
class Journal:
    """All parts of one rank's journal, joined.

    ``tables[name][column]`` are numpy arrays with the types of :data:`COLUMNS`. Tables without data have length 0.
    ``damaged`` lists parts that could not be read, with the reason.
    """

    tables: dict[str, dict[str, NDArray[Any]]]
    names: list[str]
    modules: list[dict[str, Any]]
    stacks: list[list[tuple[str, int, str]]]
    notes: list[str]
    facts: dict[str, Any]
    damaged: list[str]

    def rows(self, table: str) -> int:
        """Return the number of rows of ``table``."""
        return int(next(iter(self.tables[table].values())).size)


PartContent = tuple[dict[str, NDArray[Any]], dict[str, Any]]
"""Content of one part: arrays by ``table.column``, and texts by :data:`TEXTS`."""

_TEXT_SHAPES: dict[str, Shape] = {
    "names": ListOf(str),
    "modules": ListOf(Fields({})),
    "stacks": ListOf(ListOf(ListOf(Either((str, int)), 3, 3))),
    "notes": ListOf(str),
    "facts": Fields({}),
}


def read_journal(directory: Path) -> Journal:
    """Return every readable part of ``directory`` joined, in the order of writing.

    A damaged part ends the reading, because the position of later events is unknown. It is listed in ``damaged``.
    """
    return joined(*read_parts(directory, lambda _content: None))


def read_parts(directory: Path, check: Callable[[PartContent], None]) -> tuple[list[PartContent], list[str]]:
    """Return the parts of a journal up to the first damaged one, and a description of any damage.

    Args:
        directory: The journal.
        check: Raises if a part is invalid for its reader. The part then counts as damaged.
    """
    from gpuledger.files.npz import Unpacked

    parts: list[PartContent] = []
    unpacked = Unpacked()
    for path in journal_files(directory):
        problem = None
        try:
            if path.suffix == log.SUFFIX:
                content, problem = read_log(path, COLUMNS, TEXTS)
                with reading(path.name, "damaged recording"):
                    _check_content(*content)
            else:
                content = _read_part(path, unpacked)
            with reading(path.name, "damaged recording"):
                check(content)
        except InputError as error:
            return parts, [error.message]
        parts.append(content)
        if problem is not None:
            return parts, [problem]
    return parts, []


def _read_part(path: Path, unpacked: Unpacked | None = None) -> PartContent:
    with reading(path.name, "damaged recording"):
        return _content_of(path, unpacked)


def _content_of(path: Path, unpacked: Unpacked | None) -> PartContent:
    from gpuledger.files.npz import read_arrays

    arrays = read_arrays(path, unpacked)
    text = parse_json(arrays.pop("text").tobytes(), path.name, escape_surrogates=False)
    version = text.get("journal_version") if isinstance(text, dict) else None
    if version != JOURNAL_VERSION:
        raise InputError(
            f"{path.name}: recording version {version}, but this gpuledger reads version {JOURNAL_VERSION}"
        )
    texts = {key: text[key] for key in TEXTS}
    _check_content(arrays, texts)
    return arrays, texts


def _check_content(arrays: dict[str, NDArray[Any]], texts: dict[str, Any]) -> None:
    """Check the shapes of a part's texts and the columns of its tables.

    Raises:
        ValueError: one is invalid.
    """
    for key, shape in _TEXT_SHAPES.items():
        check_shape(texts[key], shape, key)
    for table in COLUMNS:
        _check_columns(table, arrays)


def _check_columns(table: str, arrays: dict[str, NDArray[Any]]) -> None:
    """Check that a table has all of its columns or none, with the right types and the same length.

    Raises:
        ValueError: it does not; the message names the column.
    """
    given = {name: arrays[f"{table}.{name}"] for name in COLUMNS[table] if f"{table}.{name}" in arrays}
    if not given:
        return
    lacking = [name for name in COLUMNS[table] if name not in given]
    if lacking and any(values.size for values in given.values()):  # parts of earlier versions lack newer columns
        raise ValueError(f"{table}: column {lacking[0]} is missing")
    if {values.ndim for values in given.values()} != {1} or len({values.size for values in given.values()}) > 1:
        raise ValueError(f"{table}: its columns have different lengths")
    for name, values in given.items():
        dtype = np.dtype(COLUMNS[table][name])
        kept = values.astype(dtype)
        if values.dtype != dtype and (values.dtype.kind not in "biu" or not np.array_equal(kept, values)):
            raise ValueError(f"{table}.{name}: values of type {values.dtype}, expected {dtype}")
        arrays[f"{table}.{name}"] = kept


def journal_of(parts: Iterable[Part]) -> Journal:
    """Return parts joined that were kept in memory."""
    return joined([(part.arrays(), {key: getattr(part, key) for key in TEXTS}) for part in parts], [])


def joined(parts: list[PartContent], damaged: list[str]) -> Journal:
    """Return the arrays and texts of parts as one journal."""
    gathered: dict[str, list[NDArray[Any]]] = {}
    journal = Journal(tables={}, names=[], modules=[], stacks=[], notes=[], facts={}, damaged=damaged)
    for columns, text in parts:
        for key, values in columns.items():
            gathered.setdefault(key, []).append(values)
        journal.names.extend(text["names"])
        journal.modules.extend(text["modules"])
        journal.stacks.extend([(str(f), int(n), str(q)) for f, n, q in stack] for stack in text["stacks"])
        journal.notes.extend(text["notes"])
        journal.facts.update(text["facts"])
    for table, columns_of in COLUMNS.items():
        journal.tables[table] = {
            column: np.concatenate([a.astype(dtype, copy=False) for a in gathered[f"{table}.{column}"]])
            if f"{table}.{column}" in gathered
            else np.zeros(0, dtype)
            for column, dtype in columns_of.items()
        }
    return journal
