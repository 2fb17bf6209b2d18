"""Read the summaries of many ranks at once, with DuckDB over their Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.ranks.summaries import BREAKDOWN, SUMMARY, summary_files, summary_tables
from gpuledger.errors import InputError
from gpuledger.model.schema.tables import TABLES

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from gpuledger.model.run import Rank

DATA_PARALLEL = frozenset(
    {"dp", "ddp", "fsdp", "hsdp", "replicate", "shard", "dp_replicate", "dp_shard", "data", "dim0"}
)
"""Dimensions of a device mesh along which ranks do the same work on other data, so their memory can be compared."""
_READ = frozenset({"device_idx", "category", "module", "bytes", "expected_bytes"})
"""Columns that are read from the breakdowns."""
_TYPES = {"int32": "INTEGER", "int64": "BIGINT", "float64": "DOUBLE", "string": "VARCHAR", "label": "VARCHAR"}
MEMORY_LIMIT, THREADS = "320MB", 2


@dataclass(frozen=True)
class RankLine:
    """One device of one rank. ``group`` are its coordinates without those of data parallelism."""

    rank: int
    device_idx: int
    device_name: str
    coordinate: str
    status: str
    steps_seen: int | None
    peak_allocated_bytes: int
    recorded_peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    peak_step: int
    peak_phase: str
    peak_module: str
    step_time_ns: int | None
    step_energy_j: float | None

    @property
    def group(self) -> str:
        """Return the coordinates that must be equal for two ranks to be compared."""
        parts = [part for part in self.coordinate.split(",") if part.partition("=")[0] not in DATA_PARALLEL]
        return ",".join(parts)


@contextmanager
def open_summaries(ranks: Sequence[Rank]) -> Iterator[tuple[duckdb.DuckDBPyConnection, tuple[RankLine, ...]]]:
    """Yield a connection with the summaries in its tables, and the lines in the order of the ranks.

    ``places`` has a row for each line: rank, device and the number of its group. ``keys`` has the numbers of each
    category and module, and ``sums`` their bytes by rank: numbers are grouped much faster than texts.

    Of GPUs and CPU tensors, only the GPUs are included. Summaries that were not written, as in runs of an earlier
    version, are computed.

    Raises:
        InputError: a summary is damaged.
    """
    import duckdb

    connection = duckdb.connect(":memory:", config={"threads": THREADS, "memory_limit": MEMORY_LIMIT})
    connection.execute("SET enable_progress_bar = false")  # interactive Python has one, on standard output
    connection.execute("SET preserve_insertion_order = false")  # else one thread alone writes a table
    files = {rank.number: summary_files(rank) for rank in ranks}
    computed = [(rank.number, summary_tables(rank)) for rank in ranks if not files[rank.number][SUMMARY]]
    try:
        for name in (SUMMARY, BREAKDOWN):
            paths = [path for found in files.values() if found[SUMMARY] for path in found[name]]
            _create(connection, name, paths, [(number, tables[name]) for number, tables in computed])
        lines = _read_lines(connection)
        _number(connection, lines)
        yield connection, lines
    except (duckdb.InvalidInputException, duckdb.BinderException, duckdb.IOException) as error:
        raise InputError(f"{ranks[0].directory.parent.name}: damaged summary of a rank: {error}") from error
    finally:
        connection.close()


def _create(
    connection: duckdb.DuckDBPyConnection, name: str, files: list[str], computed: list[tuple[int, pa.Table]]
) -> None:
    """Create the table ``read_NAME`` from files and from tables in memory, with the rank as its first column."""
    wanted = [column for column in TABLES[name].columns if name == SUMMARY or column.name in _READ]
    columns = ", ".join(column.name for column in wanted)
    types = ", ".join(f"{column.name} {_TYPES[column.type]}" for column in wanted)
    connection.execute(f"CREATE TABLE read_{name} (rank INTEGER, {types})")
    rows = "" if name == SUMMARY else "WHERE category <> ''"
    if files:
        number = rf"regexp_extract(filename, 'rank-([0-9]+)[/\\]{name}[/\\]part', 1)::INTEGER"
        connection.execute(
            f"INSERT INTO read_{name} SELECT {number}, {columns} FROM read_parquet(?, filename = true) {rows}", [files]
        )
    if computed:
        connection.register("computed", _joined(computed))
        connection.execute(f"INSERT INTO read_{name} SELECT rank, {columns} FROM computed {rows}")
        connection.unregister("computed")


def _joined(tables: list[tuple[int, pa.Table]]) -> pa.Table:
    """Return the rows of several ranks' tables, with the rank as another column."""
    import pyarrow as pa

    with_rank = [table.append_column("rank", pa.array([rank] * table.num_rows, "int32")) for rank, table in tables]
    return pa.concat_tables(with_rank).unify_dictionaries()


def _read_lines(connection: duckdb.DuckDBPyConnection) -> tuple[RankLine, ...]:
    columns = ", ".join(TABLES[SUMMARY].column_names)
    rows = connection.execute(
        f"""SELECT rank, {columns} FROM read_{SUMMARY}
        WHERE device_idx >= 0 OR NOT EXISTS (SELECT 1 FROM read_{SUMMARY} WHERE device_idx >= 0)
        ORDER BY rank, device_idx"""
    ).fetchall()
    return tuple(RankLine(*row) for row in rows)


def _number(connection: duckdb.DuckDBPyConnection, lines: tuple[RankLine, ...]) -> None:
    """Create ``places``, ``keys`` and ``sums``."""
    groups = {group: number for number, group in enumerate(dict.fromkeys(line.group for line in lines))}
    connection.execute("CREATE TABLE places (rank INTEGER, device_idx INTEGER, grp INTEGER)")
    if lines:
        rows = [(line.rank, line.device_idx, groups[line.group]) for line in lines]
        values = ", ".join(f"({rank}, {device_idx}, {group})" for rank, device_idx, group in rows)
        connection.execute(f"INSERT INTO places VALUES {values}")
    one_device = len({line.rank for line in lines}) == len(lines)
    summed = "sum({0})::BIGINT" if not one_device else "{0}"
    sizes = ", ".join(f"{summed.format(name)} AS {name}" for name in ("bytes", "expected_bytes"))
    grouped = "" if one_device else "GROUP BY ALL"
    for statement in (
        f"""CREATE TABLE keys AS SELECT row_number() OVER () AS key, category, module,
            dense_rank() OVER (ORDER BY category) AS category_no, dense_rank() OVER (ORDER BY module) AS module_no
        FROM (SELECT DISTINCT category, module FROM read_{BREAKDOWN})""",
        f"""CREATE TABLE sums AS
        SELECT rank, grp, key::INTEGER AS key, {sizes}
        FROM read_{BREAKDOWN} JOIN places USING (rank, device_idx) JOIN keys USING (category, module) {grouped}""",
    ):
        connection.execute(statement)
