"""Read the summaries of many ranks at once, with DuckDB over their Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.ranks.summaries import BREAKDOWN, SUMMARY, has_summary, summary_tables
from gpuledger.errors import InputError
from gpuledger.model.run import PARTS
from gpuledger.model.tables import TABLES

if TYPE_CHECKING:
    import duckdb

    from gpuledger.model.run import Rank

DATA_PARALLEL = frozenset(
    {"dp", "ddp", "fsdp", "hsdp", "replicate", "shard", "dp_replicate", "dp_shard", "data", "dim0"}
)
"""Dimensions of a device mesh along which ranks do the same work on other data, so their memory can be compared."""
MEMORY_LIMIT, THREADS = "400MB", 2


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
    """Yield a connection with the tables ``lines`` and ``breakdown``, and the lines in the order of the ranks.

    Of GPUs and CPU tensors, only the GPUs are included. Summaries that were not written, as in runs of an earlier
    version, are computed.

    Raises:
        InputError: a summary is damaged.
    """
    import duckdb

    connection = duckdb.connect(":memory:", config={"threads": THREADS, "memory_limit": MEMORY_LIMIT})
    written = [rank for rank in ranks if has_summary(rank)]
    computed = [(rank.number, summary_tables(rank)) for rank in ranks if not has_summary(rank)]
    try:
        for name in (SUMMARY, BREAKDOWN):
            _create(connection, name, written, [(number, tables[name]) for number, tables in computed])
        lines = _read_lines(connection)
        _add_groups(connection, lines)
        yield connection, lines
    except (duckdb.InvalidInputException, duckdb.BinderException, duckdb.IOException) as error:
        raise InputError(f"{ranks[0].directory.parent.name}: damaged summary of a rank: {error}") from error
    finally:
        connection.close()


def _create(
    connection: duckdb.DuckDBPyConnection, name: str, written: list[Rank], computed: list[tuple[int, Any]]
) -> None:
    """Create the table ``read_NAME`` from files and from tables in memory, with the rank as its first column."""
    columns = ", ".join(TABLES[name].column_names)
    schema = TABLES[name].arrow_schema()
    connection.register(f"empty_{name}", schema.empty_table())
    connection.execute(f"CREATE TABLE read_{name} AS SELECT 0::INTEGER AS rank, {columns} FROM empty_{name}")
    files = [str(part) for rank in written for part in (rank.directory / name).glob(PARTS)]
    if files:
        number = rf"regexp_extract(filename, 'rank-([0-9]+)[/\\]{name}[/\\]part', 1)::INTEGER"
        connection.execute(
            f"INSERT INTO read_{name} SELECT {number}, {columns} FROM read_parquet(?, filename = true)", [files]
        )
    for rank, table in computed:
        connection.register("one", table)
        connection.execute(f"INSERT INTO read_{name} SELECT {rank}, {columns} FROM one")
        connection.unregister("one")


def _read_lines(connection: duckdb.DuckDBPyConnection) -> tuple[RankLine, ...]:
    columns = ", ".join(TABLES[SUMMARY].column_names)
    rows = connection.execute(
        f"""SELECT rank, {columns} FROM read_{SUMMARY}
        WHERE device_idx >= 0 OR NOT EXISTS (SELECT 1 FROM read_{SUMMARY} WHERE device_idx >= 0)
        ORDER BY rank, device_idx"""
    ).fetchall()
    return tuple(RankLine(*row) for row in rows)


def _add_groups(connection: duckdb.DuckDBPyConnection, lines: tuple[RankLine, ...]) -> None:
    import pyarrow as pa

    groups = pa.table(
        {
            "rank": pa.array([line.rank for line in lines], pa.int32()),
            "device_idx": pa.array([line.device_idx for line in lines], pa.int32()),
            "group": pa.array([line.group for line in lines], pa.string()),
        }
    )
    connection.register("given_lines", groups)
    connection.execute("CREATE TABLE lines AS SELECT * FROM given_lines")
    connection.execute(
        f"""CREATE VIEW breakdown AS
        SELECT a.*, lines."group" FROM read_{BREAKDOWN} a JOIN lines USING (rank, device_idx)"""
    )
