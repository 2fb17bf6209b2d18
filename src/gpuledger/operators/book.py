"""The book: keys, environments and records in SQLite or PostgreSQL, shared by any number of processes."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from gpuledger.errors import InputError, UsageError
from gpuledger.model.operator_key import OperatorKey
from gpuledger.operators.contents import PARQUET
from gpuledger.operators.records import Environment, Record

try:
    import sqlalchemy as sa
    from sqlalchemy import exc
    from sqlalchemy.dialects import postgresql, sqlite
except ImportError as error:  # the extra is not installed
    raise UsageError("ops: SQLAlchemy is not installed", hint="pip install 'gpuledger[ops]'") from error

from gpuledger.operators import schema

__all__ = ["Book", "Environment", "Record", "open_book", "open_existing"]

RETRY_S = 60.0
"""How long a write is tried again while the store cannot be reached."""
BUSY_MS = 60_000
"""How long SQLite waits for another writer."""
BATCH = 500
"""Digests in one statement: below SQLite's limit of variables."""
LOCK = 7_203_114
"""PostgreSQL's advisory lock under which a book's tables are made."""

T = TypeVar("T")


def open_book(url: str | Path, *, retry_s: float = RETRY_S) -> Book:
    """Return the book at a path or URL, made there where there is none, and taken to the newest schema.

    Args:
        url: A file, ``sqlite:///FILE`` or ``postgresql://USER@HOST/NAME``.
        retry_s: How long a call is tried again while PostgreSQL is gone.

    Raises:
        InputError: it cannot be reached, is no book, or is of a newer schema.
        UsageError: no such kind of URL, or its driver is not installed.
    """
    parsed = parse_url(str(url))
    if str(url).endswith(PARQUET):
        raise InputError(f"{url}: an export, not a book", hint=f"gpuledger ops merge {url} --book FILE makes it one")
    book = Book(_engine(parsed), _shown(parsed), retry_s)
    try:
        book.prepare()
    except BaseException:
        book.close()
        raise
    return book


def open_existing(url: str) -> Book:
    """Return the book at a path or URL to read from it.

    Raises:
        InputError: there is none, or as :func:`open_book`.
    """
    file = parse_url(url).database if parse_url(url).get_backend_name() == "sqlite" else None
    if file and not Path(file).is_file():
        raise InputError(f"{file}: no such book", hint="gpuledger ops measure makes one; --book names another")
    return open_book(url)


def parse_url(text: str) -> sa.URL:
    """Return a book's URL; a plain path is a SQLite file.

    Raises:
        UsageError: it is neither SQLite's nor PostgreSQL's.
    """
    if "://" not in text:
        return sa.URL.create("sqlite", database=text)
    try:
        parsed = sa.make_url(text)
    except exc.ArgumentError as error:
        raise UsageError("--book: not a URL", hint="postgresql://USER@HOST/NAME, sqlite:///FILE, or a file") from error
    kind = parsed.get_backend_name()
    if kind == "postgresql" or parsed.drivername == "postgres":
        return parsed.set(drivername="postgresql+psycopg")
    if kind != "sqlite":
        raise UsageError(f"--book {kind}://…: only SQLite and PostgreSQL are known", hint="postgresql://USER@HOST/NAME")
    return parsed


def _shown(url: sa.URL) -> str:
    """Return a book's name for people: a file as they gave it, a server's URL without its password.

    Raises:
        InputError: a file cannot be made there.
    """
    if url.get_backend_name() != "sqlite":
        return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)
    name = url.database or ":memory:"
    if name == ":memory:" or name.startswith("file:"):  # SQLite's own kinds of names
        return name
    file = Path(name)
    if file.is_dir():
        raise InputError(f"{file}: is a directory", hint="--book names a file")
    if not file.parent.is_dir():
        raise InputError(f"{file}: no folder {file.parent}", hint="make it, or give another --book")
    return str(file)


def _engine(url: sa.URL) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(url, connect_args={"timeout": BUSY_MS / 1000, "isolation_level": None})
        sa.event.listen(engine, "connect", _set_up_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        return sa.create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 10})
    except ImportError as error:
        raise UsageError("--book: no driver for PostgreSQL", hint="pip install 'gpuledger[ops]'") from error


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    """WAL lets others read while one writes; a file system that cannot do it keeps its journal, and is slower."""
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", f"busy_timeout={BUSY_MS}"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: sa.Connection) -> None:
    """A write takes its lock at once: one that began as a read could not wait for another writer's end."""
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


class Book:
    """A store of keys, environments and records. Safe for several processes; writing a thing twice changes nothing."""

    def __init__(self, engine: sa.Engine, url: str, retry_s: float) -> None:
        self.url = url
        self.engine = engine
        self._writing = engine.execution_options(writes=True)
        self._closing = weakref.finalize(self, engine.dispose)
        self._retry_s = retry_s
        self._insert: Callable[[sa.Table], Any] = (
            sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert
        )

    def prepare(self) -> None:
        """Make the tables or bring them up to date.

        Raises:
            InputError: it cannot be reached, is no book, or is of a newer schema.
        """
        try:
            with self.engine.connect() as connection:
                version = schema.version_of(connection)
            if version > schema.VERSION:
                raise InputError(
                    f"{self.url}: book of schema {version}, this gpuledger reads up to {schema.VERSION}",
                    hint="pip install --upgrade gpuledger",
                )
            if version < schema.VERSION:
                with self._writing.begin() as connection:
                    if self.engine.dialect.name == "postgresql":
                        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
                    schema.migrate(connection)
        except exc.DBAPIError as error:
            raise InputError(f"{self.url}: {_one_line(error)}", hint="is it a book, and can it be reached?") from error

    def close(self) -> None:
        """Give the connections back; a book that is let go of does so too."""
        self._closing()

    def __enter__(self) -> Book:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # -- writing ------------------------------------------------------------------------------------------------------

    def put_key(self, key: OperatorKey) -> None:
        """Add a key."""
        self.put_keys([key])

    def put_keys(self, keys: Iterable[OperatorKey]) -> None:
        """Add keys, all or none."""
        rows = [
            {"digest": key.digest, "operator": key.operator, "inputs": list(key.inputs), "flags": dict(key.flags)}
            for key in keys
        ]
        self._put({schema.KEYS: rows})

    def put_environment(self, environment: Environment) -> None:
        """Add an environment."""
        self._put({schema.ENVIRONMENTS: [{"digest": environment.digest, **environment.to_json()}]})

    def put_records(self, records: Iterable[Record]) -> None:
        """Add records, all or none; their keys and environments must be there.

        Raises:
            InputError: the store could not be reached for as long as ``retry_s``, or a key or environment is missing.
        """
        self._put({schema.RECORDS: [{"digest": record.digest, **_plain(record)} for record in records]})

    def put_kernels(self, names: Mapping[str, Sequence[str]], environment: Environment) -> None:
        """Name the kernels of records that name none, all or none; ``names`` are by the digest of the key."""
        bare = [record for record in self.records(environment, list(names)) if not record.kernels]

        def write(connection: sa.Connection) -> None:
            for record in bare:
                kernels = list(names[record.key_digest])
                connection.execute(
                    sa.update(schema.RECORDS).where(schema.RECORDS.c.digest == record.digest).values(kernels=kernels)
                )

        self._try(lambda: self._within(self._writing, write))

    def _put(self, rows: dict[sa.Table, list[dict[str, Any]]]) -> None:
        def write(connection: sa.Connection) -> None:
            for table, found in rows.items():
                if found:
                    connection.execute(self._insert(table).on_conflict_do_nothing(), found)

        self._try(lambda: self._within(self._writing, write))

    # -- reading ------------------------------------------------------------------------------------------------------

    def keys(self, digests: Sequence[str] | None = None) -> dict[str, OperatorKey]:
        """Return keys by digest: those asked for that the book has, or all."""
        rows = self._select(sa.select(schema.KEYS), schema.KEYS.c.digest, digests)
        return {row["digest"]: OperatorKey(row["operator"], tuple(row["inputs"]), row["flags"]) for row in rows}

    def environments(self) -> dict[str, Environment]:
        """Return all environments by digest."""
        rows = self._select(sa.select(schema.ENVIRONMENTS), schema.ENVIRONMENTS.c.digest, None)
        names = [field.name for field in fields(Environment)]
        return {row["digest"]: Environment(**{name: row[name] for name in names}) for row in rows}

    def records(
        self, environment: Environment | str | None = None, digests: Sequence[str] | None = None
    ) -> list[Record]:
        """Return records, oldest first: of one environment (or its digest), of keys with these digests, or all."""
        query = sa.select(schema.RECORDS)
        if environment is not None:
            wanted = environment if isinstance(environment, str) else environment.digest
            query = query.where(schema.RECORDS.c.environment_digest == wanted)
        rows = self._select(query, schema.RECORDS.c.key_digest, digests)
        names = [field.name for field in fields(Record)]
        found = [_record({name: row[name] for name in names}) for row in rows]
        return sorted(found, key=lambda record: (record.measured_ns, record.digest))

    def missing(
        self, digests: Sequence[str], environment: Environment | str, need_energy: bool = False, mode: str | None = None
    ) -> list[str]:
        """Return the digests that have no record for an environment, in the order given.

        A failed measurement counts as one: it would fail again.

        Args:
            digests: Of keys.
            environment: The environment or its digest.
            need_energy: A record of time alone does not count.
            mode: Only records of this ``method["mode"]`` count.
        """
        held = {
            record.key_digest
            for record in self.records(environment, digests)
            if mode in (None, record.method.get("mode"))
            if record.status == "failed" or not need_energy or record.energy_median_j is not None
        }
        return [digest for digest in digests if digest not in held]

    def _select(self, query: sa.Select[Any], column: Any, digests: Sequence[str] | None) -> list[dict[str, Any]]:
        queries = [query] if digests is None else [query.where(column.in_(part)) for part in _parts(digests)]

        def read(connection: sa.Connection) -> list[dict[str, Any]]:
            return [dict(row) for part in queries for row in connection.execute(part).mappings()]

        return self._try(lambda: self._within(self.engine, read))

    # -- the store ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _within(engine: sa.Engine, action: Callable[[sa.Connection], T]) -> T:
        with engine.begin() as connection:
            return action(connection)

    def _try(self, action: Callable[[], T]) -> T:
        """Return what ``action`` does, tried again while the store is gone. Every action may be done twice."""
        deadline_s = time.monotonic() + self._retry_s
        wait_s = 0.1
        while True:
            try:
                return action()
            except exc.IntegrityError as error:
                raise InputError(f"{self.url}: a record's key or environment is not in the book") from error
            except exc.DBAPIError as error:
                is_gone = isinstance(error, exc.OperationalError | exc.InterfaceError)
                if not is_gone or time.monotonic() + wait_s > deadline_s:
                    raise InputError(f"{self.url}: {_one_line(error)}") from error
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, 2.0)


def _plain(record: Record) -> dict[str, Any]:
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {
        **values,
        "method": dict(record.method),
        "blocks": [dict(block) for block in record.blocks],
        "kernels": list(record.kernels),
    }


def _record(row: dict[str, Any]) -> Record:
    return Record(**{**row, "blocks": tuple(row["blocks"]), "kernels": tuple(row["kernels"])})


def _parts(digests: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(digests), BATCH):
        yield digests[start : start + BATCH]


def _one_line(error: exc.DBAPIError) -> str:
    return " ".join(str(error.orig).split())
