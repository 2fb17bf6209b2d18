"""SQL over a run's tables: DuckDB in memory, read-only, and no way to another file.

Each table is a view over the Parquet parts of every rank, with the rank as its first column. DuckDB reads them through
Arrow and is not let to the file system itself, so a query can neither read nor write anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuledger.errors import GpuLedgerError, UsageError
from gpuledger.export.query_limits import QueryLimits, Stopwatch
from gpuledger.export.tables import exported_schema, exported_table, written_table
from gpuledger.files.reading import storable
from gpuledger.model.run import PARTS
from gpuledger.model.schema.tables import TABLES

if TYPE_CHECKING:
    import duckdb

    from gpuledger.model.run import Run

BATCH_ROWS = 10_000
_HINT = "Use SELECT, WITH, DESCRIBE or SHOW TABLES"
_VIEWS = (
    """CREATE VIEW allocations AS
    SELECT blocks.*, coalesce(modules.path, '') AS module, modules.class_name, names.name
    FROM blocks
    LEFT JOIN modules ON modules.rank = blocks.rank AND modules.module_id = blocks.module_id
    LEFT JOIN names ON names.rank = blocks.rank AND names.name_id = blocks.name_id""",
    """CREATE VIEW peaks AS
    WITH changes AS (
        SELECT rank, device_idx, alloc_index AS index, allocated_bytes AS bytes FROM blocks
        UNION ALL
        SELECT rank, device_idx, free_requested_index, -allocated_bytes FROM blocks
        WHERE free_requested_index IS NOT NULL
    ), sums AS (
        SELECT rank, device_idx, index, sum(sum(bytes)) OVER (PARTITION BY rank, device_idx ORDER BY index) AS bytes
        FROM changes GROUP BY rank, device_idx, index
    )
    SELECT rank, device_idx, max_by(index, (bytes, -index)) AS index, max(bytes) AS recorded_peak_allocated_bytes
    FROM sums GROUP BY rank, device_idx""",
    """CREATE VIEW at_peak AS
    SELECT allocations.* FROM allocations JOIN peaks
    ON peaks.rank = allocations.rank AND peaks.device_idx = allocations.device_idx
    WHERE alloc_index <= index AND (free_requested_index IS NULL OR free_requested_index > index)""",
)
"""``allocations``: blocks with module path and tensor name. ``peaks``: the event at which each device's allocated bytes
first reached their maximum. ``at_peak``: the allocations that exist at that event. A view is computed when queried."""
_LOCKS = (
    "SET temp_directory = ''",
    "SET enable_external_access = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET python_enable_replacements = false",
    "SET lock_configuration = true",
)
"""Set after the tables are registered. Without a temporary directory a large query fails instead of writing one."""


@dataclass(frozen=True)
class Answer:
    """The columns of a query's answer, and its rows in batches, read as they are asked for."""

    columns: tuple[str, ...]
    batches: Iterator[list[tuple[Any, ...]]]


def open_database(run: Run, limits: QueryLimits | None = None) -> duckdb.DuckDBPyConnection:
    """Return a connection with one view per table, and those of :data:`_VIEWS`.

    Raises:
        InputError: a part is damaged.
    """
    for rank in run.ranks:
        rank.check_unpacked()
    return locked_database({name: _dataset(run, name) for name in TABLES}, _VIEWS, limits)


def locked_database(
    tables: Mapping[str, Any], views: Iterable[str] = (), limits: QueryLimits | None = None
) -> duckdb.DuckDBPyConnection:
    """Return a database over Arrow tables and datasets, with views on them, that reads and writes nothing else."""
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute("SET enable_progress_bar = false")  # interactive Python has one, on standard output
    for name, table in tables.items():
        connection.register(name, table)
    memory_limit = f"SET memory_limit = '{(limits or QueryLimits()).memory_bytes}B'"
    for statement in (*views, memory_limit, *_LOCKS):
        connection.execute(statement)
    return connection


def ask(connection: duckdb.DuckDBPyConnection, query: str, limits: QueryLimits | None = None) -> Answer:
    """Return the answer to one SELECT (WITH, DESCRIBE and SHOW are such too).

    Raises:
        UsageError: not one statement, not a SELECT, or the query is wrong.
        GpuLedgerError: it takes more time or memory than the limits allow; its rows raise that too.
    """
    import duckdb

    limits = limits or QueryLimits()
    watch = Stopwatch(connection, limits)
    try:
        statements = connection.extract_statements(query)
        if len(statements) != 1:
            raise UsageError(f"sql: {len(statements)} statements, expected one", hint=_HINT)
        if statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError(f"sql: {statements[0].type.name} is not allowed, the tables are read-only", hint=_HINT)
        with watch.running():
            connection.execute(statements[0])
    except duckdb.Error as error:
        raise _as_input_error(error, limits) from error
    columns = tuple(column[0] for column in connection.description or ())
    return Answer(columns, _batches(connection, watch, limits))


def _dataset(run: Run, name: str) -> Any:
    """Return an Arrow dataset over every rank's parts, read when a query needs them; an empty table without parts."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    schema = exported_schema(name)
    found = ((rank.number, (rank.directory / name).glob(PARTS)) for rank in run.ranks)
    parts = [(number, part) for number, places in found for part in sorted(places)]
    if not parts:
        return schema.empty_table()
    if not run.has_measured_times:
        return pa.concat_tables([written_table(rank, name) for rank in run.ranks])
    if storable(str(run.path)) != str(run.path):  # pyarrow's file systems take no name that is not UTF-8
        return pa.concat_tables([exported_table(rank, name) for rank in run.ranks])
    return ds.FileSystemDataset.from_paths(
        [str(part) for _, part in parts],
        schema=schema,
        format=ds.ParquetFileFormat(),
        filesystem=LocalFileSystem(),
        partitions=[ds.field("rank") == number for number, _ in parts],
    )


def _batches(
    connection: duckdb.DuckDBPyConnection, watch: Stopwatch, limits: QueryLimits
) -> Iterator[list[tuple[Any, ...]]]:
    import duckdb

    while True:
        try:
            with watch.running():
                batch = connection.fetchmany(BATCH_ROWS)
        except duckdb.Error as error:
            raise _as_input_error(error, limits) from error
        if not batch:
            return
        yield batch


def _as_input_error(error: Exception, limits: QueryLimits) -> GpuLedgerError:
    """Return a DuckDB error as one line; what it adds below its first line becomes the hint."""
    import duckdb

    if isinstance(error, duckdb.InterruptException):
        return limits.out_of_time()
    if isinstance(error, duckdb.OutOfMemoryException):
        return limits.out_of_memory()
    first, _, rest = str(error).partition("\n")
    lines = [line.strip() for line in rest.splitlines() if line.strip() and not line.startswith(("LINE", " "))]
    return UsageError(
        f"sql: {first}", hint=" ".join(lines) or "List tables with SHOW TABLES, and columns with DESCRIBE TABLE_NAME"
    )
