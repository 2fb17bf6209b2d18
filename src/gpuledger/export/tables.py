"""A run's tables as CSV, Parquet or JSON, whole, with the rank as first column."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpuledger.analyze.memory.lifetimes import device_indices, is_reserved_known
from gpuledger.files.writing import replaced
from gpuledger.model.run_directory import write_json
from gpuledger.model.schema.tables import SCHEMA_VERSION, TABLES

if TYPE_CHECKING:
    import pyarrow as pa

    from gpuledger.model.run import Rank, Run

ROWS_AT_ONCE = 50_000

UNTOLD = {
    "blocks": ("stream", "address", "step"),
    "segments": ("stream", "address"),
    "counters": ("t_ns", "step", "reserved_bytes", "peak_reserved_bytes"),
    "samples": ("t_ns",),
    "process_samples": ("t_ns",),
    "steps": ("start_ns", "end_ns", "paused_ns"),
    "spans": ("start_ns", "end_ns"),
}
"""Columns that always have a value in a run, and that logs of older tools can lack: zeros, or numbers for times.

Times of a simulated GPU are among them.
"""

RESERVED = ("reserved_bytes", "peak_reserved_bytes")


def manifests(run: Run) -> dict[str, Any]:
    """Return the manifests of the run and of its ranks as one object."""
    ranks = [rank.manifest.to_json() for rank in run.ranks]
    return {"schema_version": SCHEMA_VERSION, "run": run.manifest.to_json(), "ranks": ranks}


def write_csv(run: Run, name: str, stream: IO[bytes]) -> int:
    """Write one table as CSV (UTF-8, a line of titles, text quoted, null empty and ``""`` an empty text).

    Texts are written as the program gave them, also where a spreadsheet would take them for a formula.

    Returns:
        The number of rows.
    """
    import pyarrow.csv as pa_csv

    with pa_csv.CSVWriter(stream, exported_schema(name)) as writer:
        return _write_ranks(run, name, writer.write_table)


def write_parquet(run: Run, name: str, stream: IO[bytes]) -> int:
    """Write one table of all ranks as one Parquet file.

    Returns:
        The number of rows.
    """
    import pyarrow.parquet as pq

    with pq.ParquetWriter(stream, exported_schema(name), compression="zstd") as writer:
        return _write_ranks(run, name, writer.write_table)


def write_json_tables(run: Run, names: tuple[str, ...], stream: IO[bytes]) -> int:
    """Write the manifests and ``tables``, each a list of objects, as one JSON document in ASCII.

    Returns:
        The number of rows.
    """
    head = json.dumps(manifests(run), allow_nan=False)
    stream.write(f'{head[:-1]}, "tables": {{'.encode("ascii"))
    count = 0
    for position, name in enumerate(names):
        stream.write(f'{"," if position else ""}\n"{name}": ['.encode("ascii"))
        separator = "\n"
        for rank in run.ranks:
            for row in _objects(written_table(rank, name)):
                stream.write(f"{separator}{json.dumps(row, allow_nan=False)}".encode("ascii"))
                separator = ",\n"
                count += 1
        stream.write(b"]")
    stream.write(b"}}\n")
    return count


def write_directory(
    run: Run, directory: Path, suffix: str, write: Callable[[Run, str, IO[bytes]], int]
) -> dict[str, int]:
    """Write every table to ``directory/TABLE.suffix``, and ``manifest.json``; files of other names are left alone.

    A link at one of these names is replaced, not followed.

    Returns:
        Rows by table.
    """
    directory.mkdir(parents=True, exist_ok=True)
    counts = {}
    for name in TABLES:
        with replaced(directory / f"{name}.{suffix}") as stream:
            counts[name] = write(run, name, stream)
    write_json(directory / "manifest.json", manifests(run))
    return counts


def exported_schema(name: str) -> pa.Schema:
    """Return a table's schema with the rank first, and labels as strings."""
    import pyarrow as pa

    untold = UNTOLD.get(name, ())
    fields = (
        (field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field).with_nullable(
            field.nullable or field.name in untold
        )
        for field in TABLES[name].arrow_schema()
    )
    return pa.schema([pa.field("rank", pa.int32(), nullable=False), *fields])


def exported_table(rank: Rank, name: str) -> pa.Table:
    """Return one rank's table in the schema of :func:`exported_schema`."""
    import pyarrow as pa

    table = rank.table(name)
    numbers = pa.array([rank.number] * table.num_rows, pa.int32())
    return table.add_column(0, pa.field("rank", pa.int32()), numbers).cast(exported_schema(name))


def written_table(rank: Rank, name: str) -> pa.Table:
    """Return one rank's table as it is written to a file: what an older log does not have is null, not 0."""
    import pyarrow as pa

    table = exported_table(rank, name)
    recorder = rank.manifest.recorder
    if recorder.has_measured_times and (not recorder.is_imported or recorder.has_segments):
        return table
    for column in UNTOLD.get(name, ()):
        if not recorder.has_measured_times and not column.endswith("_ns"):
            continue
        place = table.column_names.index(column)
        numbers = column == "t_ns" and not recorder.has_only_card_readings
        if column in RESERVED:
            numbers = not all(is_reserved_known(rank, device) for device in device_indices(rank))
        if numbers or not any(table.column(place).to_pylist()):
            nothing = pa.nulls(table.num_rows, table.column(place).type)
            table = table.set_column(place, table.schema.field(place), nothing)
    return table


def _write_ranks(run: Run, name: str, write_table: Callable[[pa.Table], None]) -> int:
    count = 0
    for rank in run.ranks:
        table = written_table(rank, name)
        write_table(table)
        count += table.num_rows
    return count


def _objects(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Return the rows as objects; a number that JSON cannot hold becomes null."""
    for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE):
        for row in batch.to_pylist():
            for key, value in row.items():
                if isinstance(value, float) and not math.isfinite(value):
                    row[key] = None
            yield row
