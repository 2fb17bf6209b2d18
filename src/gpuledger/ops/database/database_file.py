"""Detect and read an operator database in a SQLite file, without changing anything.

Even for reading a file in WAL mode, SQLite creates two more files. It does not if the file is opened as immutable,
which is safe if there is no ``-wal`` file, because the last writer removes that.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gpuledger.errors import InputError
from gpuledger.ops.database.schema import METADATA, VERSIONS

_MAGIC = b"SQLite format 3\0"
_HEAD_BYTES = 20
_WAL = 2
"""Bytes 18 and 19 of a file in WAL mode."""
BUSY_MS = 60_000
"""How long SQLite waits for another writer."""
NOT_ONE = "not an operator database"


@dataclass(frozen=True)
class ReadOnlyFile:
    """How to open a file for reading.

    Attributes:
        path: The file.
        uri: URI for SQLite.
        state: A value that changes if the file is written; None if SQLite locks the file.
    """

    path: Path
    uri: str
    state: tuple[int, ...] | None

    def refuse_changed(self) -> None:
        """Do nothing if the file was not written since it was opened.

        Raises:
            InputError: it was written, so that the data can be incomplete.
        """
        if self.state is not None and _state(self.path) != self.state:
            raise InputError(
                f"{self.path}: another process wrote to it while it was read", hint="Run the command again"
            )


def open_to_read(path: Path) -> ReadOnlyFile:
    """Return how to read an operator database.

    Raises:
        InputError: it does not exist, or is not an operator database.
    """
    found = _how_to_read(path)
    if not _tables(found):
        raise InputError(f"{path}: {NOT_ONE}: the file is empty", hint="Create a database with: gpuledger ops measure")
    return found


def refuse_foreign(path: Path) -> None:
    """Do nothing if a file is an operator database, empty, or missing. The file is not changed.

    Raises:
        InputError: it is another file, which must not be written to.
    """
    if path.exists() and path.stat().st_size:
        _tables(_how_to_read(path))


def _how_to_read(path: Path) -> ReadOnlyFile:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    if head and not head.startswith(_MAGIC):
        raise InputError(f"{path}: {NOT_ONE}: not an SQLite file", hint="Name the right file with --database")
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    nobody_writes = _WAL in head[18:20] and not _beside(path, "-wal").exists()
    return ReadOnlyFile(path, f"{uri}&immutable=1", _state(path)) if nobody_writes else ReadOnlyFile(path, uri, None)


def _state(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return (found.st_ino, found.st_size, found.st_mtime_ns, _beside(path, "-wal").exists())


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _tables(file: ReadOnlyFile) -> set[str]:
    """Return the names of the tables in an operator database; none for an empty database.

    Views and virtual tables with these names do not count, because they could compute forever.

    Raises:
        InputError: it has other tables, or cannot be read.
    """
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
    try:
        with closing(sqlite3.connect(file.uri, uri=True, timeout=BUSY_MS / 1000)) as connection:
            anything = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            names = {name for (name,) in connection.execute(query)}
    except sqlite3.Error as error:
        hint = (
            "Copy the file to a directory that you can write to" if not os.access(file.path.parent, os.W_OK) else None
        )
        raise InputError(f"{file.path}: {NOT_ONE}, or damaged: {error}", hint=hint) from error
    if anything and not names.issuperset(METADATA.tables):
        missing = next(name for name in (VERSIONS.name, *METADATA.tables) if name not in names)
        raise InputError(
            f"{file.path}: {NOT_ONE}: the table {missing} is missing", hint="Name the right file with --database"
        )
    return names
