"""The database: keys, environments and records in SQLite or PostgreSQL, shared by any number of processes."""

from __future__ import annotations

import sqlite3
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from gpuledger.errors import InputError, UsageError
from gpuledger.files.reading import reading
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.contents import PARQUET
from gpuledger.ops.database.records import Environment, Record, environment_from, record_from
from gpuledger.redact import hide_credentials

try:
    import sqlalchemy as sa
    from sqlalchemy import exc
    from sqlalchemy.dialects import postgresql, sqlite
except ImportError as error:  # the extra is not installed
    raise UsageError(
        "operator databases need SQLAlchemy, which is not installed", hint="pip install 'gpuledger[ops]'"
    ) from error

from gpuledger.ops.database import schema
from gpuledger.ops.database.database_file import NOT_ONE, open_to_read, refuse_foreign
from gpuledger.ops.database.stores import is_file, parse_url, reading_engine, shown_url, writing_engine

__all__ = ["Environment", "OperatorDatabase", "Record", "open_database", "open_existing", "parse_url"]

RETRY_S = 60.0
"""Time in s for retries while the store cannot be reached."""
BATCH = 500
"""Digests per statement, below SQLite's limit of variables."""
LOCK = 7_203_114
"""PostgreSQL's advisory lock for creating the tables."""
_SQLITE_BUSY = (5, 6)
"""SQLITE_BUSY and SQLITE_LOCKED, the only errors that are retried."""
_POSTGRES_GONE = ("08", "53", "57P", "40", "55P03")
"""Beginnings of SQLSTATE: no connection, no resources, shutdown, deadlock, lock not available."""

T = TypeVar("T")


def open_database(url: str | Path, *, retry_s: float = RETRY_S) -> OperatorDatabase:
    """Return the database at a path or URL. Creates it if needed, and migrates it to the newest schema.

    Args:
        url: A file, ``sqlite:///FILE`` or ``postgresql://USER@HOST/NAME``.
        retry_s: Time for retries in s while PostgreSQL cannot be reached.

    Raises:
        InputError: it cannot be reached, is not an operator database, or is of a newer schema.
        UsageError: no such kind of URL, or its driver is not installed.
    """
    parsed = parse_url(str(url))
    _refuse_export(str(url))
    shown = shown_url(parsed)
    if is_file(parsed):
        refuse_foreign(Path(shown))
    return _ready(OperatorDatabase(writing_engine(parsed), shown, retry_s), OperatorDatabase.prepare)


def open_existing(url: str, *, retry_s: float = RETRY_S) -> OperatorDatabase:
    """Return the database at a path or URL for reading. Writes nothing.

    Raises:
        InputError: it does not exist, is of an older schema, or as for :func:`open_database`.
    """
    parsed = parse_url(url)
    _refuse_export(url)
    if parsed.get_backend_name() != "sqlite":
        reading = writing_engine(parsed).execution_options(postgresql_readonly=True)
        database = OperatorDatabase(reading, shown_url(parsed), retry_s)
    else:
        path = Path(parsed.database or "")
        if not path.is_file():
            raise InputError(
                f"{path}: no such database",
                hint="Name an existing database, or create one with: gpuledger ops measure",
            )
        file = open_to_read(path)
        database = OperatorDatabase(reading_engine(file), str(path), retry_s, file.refuse_changed)
    return _ready(database, OperatorDatabase.refuse_other_schema)


def _ready(database: OperatorDatabase, step: Callable[[OperatorDatabase], None]) -> OperatorDatabase:
    """Return the database after ``step``. Close it if that fails."""
    try:
        step(database)
    except BaseException:
        database.close()
        raise
    return database


def _refuse_export(url: str) -> None:
    if url.endswith(PARQUET):
        name = hide_credentials(url)
        raise InputError(
            f"{name}: an exported file, not a database",
            hint=f"Import it with: gpuledger ops merge {name} --database FILE",
        )


class OperatorDatabase:
    """A store of keys, environments and records, safe for several processes. Adding a value twice changes nothing."""

    def __init__(
        self, engine: sa.Engine, url: str, retry_s: float, refuse_changed: Callable[[], None] = lambda: None
    ) -> None:
        self.url = url
        self.engine = engine
        self._refuse_changed = refuse_changed
        self._writing = engine.execution_options(writes=True)
        self._closing = weakref.finalize(self, engine.dispose)
        self._retry_s = retry_s
        self._insert: Callable[[sa.Table], Any] = (
            sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert
        )

    def prepare(self) -> None:
        """Create or migrate the tables.

        Raises:
            InputError: it cannot be reached, is not an operator database, or is of a newer schema.
        """
        try:
            if self._version() < schema.VERSION:
                with self._writing.begin() as connection:
                    if self.engine.dialect.name == "postgresql":
                        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
                    schema.migrate(connection)
        except exc.DBAPIError as error:
            raise InputError(
                f"{self.url}: {_one_line(error)}", hint="Check that this is a database and that it can be reached"
            ) from error

    def refuse_other_schema(self) -> None:
        """Do nothing if the database can be read without migration.

        Raises:
            InputError: it cannot be reached, is not an operator database, or is of another schema.
        """
        try:
            version = self._version()
        except exc.DBAPIError as error:
            raise InputError(
                f"{self.url}: {_one_line(error)}", hint="Check that this is a database and that it can be reached"
            ) from error
        if version == 0:
            raise InputError(
                f"{self.url}: {NOT_ONE}",
                hint="Name another one with --database, or create one with: gpuledger ops measure",
            )
        if version < schema.VERSION:
            raise InputError(
                f"{self.url}: the database has schema version {version} and must be updated to {schema.VERSION}",
                hint="Update it with a command that writes to it, for example gpuledger ops measure",
            )

    def _version(self) -> int:
        with self.engine.connect() as connection:
            try:
                version = schema.version_of(connection)
            except ValueError as error:
                raise InputError(f"{self.url}: damaged database: {error}") from error
        if version > schema.VERSION:
            raise InputError(
                f"{self.url}: schema version {version}, but this gpuledger reads up to version {schema.VERSION}",
                hint="pip install --upgrade gpuledger",
            )
        return version

    def close(self) -> None:
        """Close the connections. Also done when the object is deleted."""
        self._closing()

    def __enter__(self) -> OperatorDatabase:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # -- writing ------------------------------------------------------------------------------------------------------

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
        """Add records, all or none. Their keys and environments must exist.

        Raises:
            InputError: the store could not be reached for as long as ``retry_s``, or a key or environment is missing.
        """
        self._put({schema.RECORDS: [{"digest": record.digest, **_plain(record)} for record in records]})

    def put_kernels(self, names: Mapping[str, Sequence[str]], environment: Environment) -> None:
        """Add kernel names to records without them, all or none. ``names`` is key digest -> names."""
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
        """Return digest -> key, for the given digests or all."""
        return dict(self._select(sa.select(schema.KEYS), schema.KEYS.c.digest, digests, _key))

    def environments(self) -> dict[str, Environment]:
        """Return all environments by digest."""
        return dict(self._select(sa.select(schema.ENVIRONMENTS), schema.ENVIRONMENTS.c.digest, None, _environment))

    def records(
        self, environment: Environment | str | None = None, digests: Sequence[str] | None = None
    ) -> list[Record]:
        """Return records, oldest first: of one environment (or its digest), of keys with these digests, or all."""
        query = sa.select(schema.RECORDS)
        if environment is not None:
            wanted = environment if isinstance(environment, str) else environment.digest
            query = query.where(schema.RECORDS.c.environment_digest == wanted)
        found = self._select(query, schema.RECORDS.c.key_digest, digests, _record)
        return sorted(found, key=lambda record: (record.measured_ns, record.digest))

    def missing(
        self, digests: Sequence[str], environment: Environment | str, need_energy: bool = False, mode: str | None = None
    ) -> list[str]:
        """Return the digests without a record for an environment, in the given order.

        A failed measurement counts as a record: it would fail again.

        Args:
            digests: Of keys.
            environment: The environment or its digest.
            need_energy: Records without energy do not count.
            mode: Only records of this ``method["mode"]`` count.
        """
        held = {
            record.key_digest
            for record in self.records(environment, digests)
            if mode in (None, record.method.get("mode"))
            if record.status == "failed" or not need_energy or record.energy_median_j is not None
        }
        return [digest for digest in digests if digest not in held]

    def _select(
        self, query: sa.Select[Any], column: Any, digests: Sequence[str] | None, make: Callable[[Any], T]
    ) -> list[T]:
        queries = [query] if digests is None else [query.where(column.in_(part)) for part in _parts(digests)]

        def read(connection: sa.Connection) -> list[T]:
            return [make(row) for part in queries for row in connection.execute(part).mappings()]

        with reading(self.url, "damaged database"):
            return self._try(lambda: self._within(self.engine, read))

    # -- the store ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _within(engine: sa.Engine, action: Callable[[sa.Connection], T]) -> T:
        with engine.begin() as connection:
            return action(connection)

    def _try(self, action: Callable[[], T]) -> T:
        """Return the result of ``action``, with retries while the store is unavailable. It must be idempotent."""
        deadline_s = time.monotonic() + self._retry_s
        wait_s = 0.1
        while True:
            try:
                found = action()
                self._refuse_changed()
                return found
            except exc.IntegrityError as error:
                raise InputError(f"{self.url}: the key or environment of a record is missing") from error
            except exc.DBAPIError as error:
                if not _passes_by(error) or time.monotonic() + wait_s > deadline_s:
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


def _key(row: Mapping[str, Any]) -> tuple[str, OperatorKey]:
    return row["digest"], OperatorKey.from_json({name: row[name] for name in ("operator", "inputs", "flags")})


def _environment(row: Mapping[str, Any]) -> tuple[str, Environment]:
    return row["digest"], environment_from(row)


def _record(row: Mapping[str, Any]) -> Record:
    return record_from({field.name: row[field.name] for field in fields(Record)})


def _parts(digests: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(digests), BATCH):
        yield digests[start : start + BATCH]


def _passes_by(error: exc.DBAPIError) -> bool:
    """Return whether an error is temporary: the store is busy or cannot be reached."""
    if isinstance(error.orig, sqlite3.Error):  # Python's own, such as of a text that is not UTF-8, have no code
        code = getattr(error.orig, "sqlite_errorcode", None)
        return code is not None and code & 0xFF in _SQLITE_BUSY
    if not isinstance(error, exc.OperationalError | exc.InterfaceError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    return error.connection_invalidated or state is None or state.startswith(_POSTGRES_GONE)


def _one_line(error: exc.DBAPIError) -> str:
    return hide_credentials(" ".join(str(error.orig).split()))
