"""Open an operator database, a SQLite file or a PostgreSQL server, for writing or only for reading."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from gpuledger.errors import InputError, UsageError
from gpuledger.files.reading import parse_json
from gpuledger.ops.database.database_file import BUSY_MS, ReadOnlyFile
from gpuledger.redact import hide_credentials


def parse_url(text: str) -> sa.URL:
    """Return a database's URL. A path is a SQLite file.

    Raises:
        UsageError: it is not a URL of SQLite or PostgreSQL.
    """
    if "://" not in text:
        return sa.URL.create("sqlite", database=text)
    try:
        parsed = sa.make_url(text)
    except (exc.ArgumentError, ValueError) as error:  # an invalid port, or unbalanced brackets
        raise UsageError(
            "--database: not a valid URL", hint="Use a file, sqlite:///FILE or postgresql://USER@HOST/NAME"
        ) from error
    kind = parsed.get_backend_name()
    if kind == "postgresql" or parsed.drivername == "postgres":
        return parsed.set(drivername="postgresql+psycopg")
    if kind != "sqlite":
        raise UsageError(
            f"--database {kind}://…: only SQLite and PostgreSQL are supported",
            hint="Use a file, or postgresql://USER@HOST/NAME",
        )
    return parsed


def shown_url(url: sa.URL) -> str:
    """Return a database's name for messages: the file as given, or the server's URL without password.

    Raises:
        InputError: the file cannot be created.
    """
    if url.get_backend_name() != "sqlite":
        return hide_credentials(url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True))
    name = url.database or ":memory:"
    if not is_file(url):
        return name
    file = Path(name)
    if file.is_dir():
        raise InputError(f"{file}: a directory, not a database", hint="Name a file with --database")
    if not file.parent.is_dir():
        raise InputError(
            f"{file}: the directory {file.parent} does not exist",
            hint="Create the directory, or name another file with --database",
        )
    return str(file)


def is_file(url: sa.URL) -> bool:
    """Return whether a URL is a plain file. SQLite also has special names."""
    name = url.database or ":memory:"
    return url.get_backend_name() == "sqlite" and name != ":memory:" and not name.startswith("file:")


def reading_engine(file: ReadOnlyFile) -> sa.Engine:
    """Return an engine for reading a file."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(file.uri, uri=True, timeout=BUSY_MS / 1000, isolation_level=None)

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.pool.NullPool, json_deserializer=_value_of)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def writing_engine(url: sa.URL) -> sa.Engine:
    """Return an engine for reading and writing a store.

    Raises:
        UsageError: the driver of PostgreSQL is not installed.
    """
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(
            url, connect_args={"timeout": BUSY_MS / 1000, "isolation_level": None}, json_deserializer=_value_of
        )
        sa.event.listen(engine, "connect", _set_up_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        return sa.create_engine(
            url, pool_pre_ping=True, connect_args={"connect_timeout": 10}, json_deserializer=_value_of
        )
    except ImportError as error:
        raise UsageError(
            "--database: the driver for PostgreSQL is not installed", hint="pip install 'gpuledger[ops]'"
        ) from error


def _value_of(text: str | bytes) -> Any:
    """Return the JSON value of a cell, with the limits of the JSON reader."""
    return parse_json(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"), "a cell")


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    """Enable WAL, so that others can read during a write. File systems without it use SQLite's slower default."""
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", f"busy_timeout={BUSY_MS}"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: sa.Connection) -> None:
    """Lock at the start of a write, because a transaction that starts as a read cannot wait for another writer."""
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
