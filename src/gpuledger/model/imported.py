"""A run imported from files of other tools: the same tables and manifests, built in memory and written at once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger._version import __version__
from gpuledger.model.manifest import RankManifest, write_rank_manifest
from gpuledger.model.run import Run, read_run, write_table
from gpuledger.model.run_manifest import RunManifest, write_run_manifest
from gpuledger.model.run_writer import RunWriter
from gpuledger.model.schema.tables import SCHEMA_VERSION, TABLES

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ImportedRank:
    """One process, or one GPU, of the imported files.

    ``tables`` maps names to tables with the columns of :data:`gpuledger.model.schema.tables.TABLES`. Values that a
    format does not have are null. ``facts`` are further keys of the rank's manifest, such as ``devices``.
    """

    number: int
    tables: dict[str, pa.Table]
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImportedRun:
    """Everything that was read from some files.

    ``format`` is the name of the reader, ``files`` the files read. ``unread`` lists lines or files that could not be
    read, each with the reason. They are shown to the user, the exit status is 3, and everything else is kept.
    """

    name: str
    format: str
    files: tuple[str, ...]
    ranks: tuple[ImportedRank, ...]
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


def rows_to_table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Return ``rows`` as table ``name``. Missing nullable columns are null.

    Raises:
        ValueError: a row lacks a required column, or has an unknown one.
    """
    import pyarrow as pa

    table = TABLES[name]
    unknown = {key for row in rows for key in row} - set(table.column_names)
    if unknown:
        raise ValueError(f"{name}: unknown columns: {sorted(unknown)}")
    for column in table.columns:
        if not column.nullable and any(row.get(column.name) is None for row in rows):
            raise ValueError(f"{name}: {column.name}: a value is missing")
    return pa.Table.from_pylist(rows, table.arrow_schema())


def write_imported(run: ImportedRun, path: Path, *, replace: bool = False) -> Run:
    """Return the run after writing it to ``path``. With ``replace``, an existing run is removed once all is written.

    Raises:
        FileExistsError: ``path`` exists, and ``replace`` is False.
        OSError: it cannot be written; nothing is left.
    """
    manifest = _run_manifest(run)
    made = RunWriter.open(path, replaced(manifest, status="running"), replace=replace)
    with made.placing():
        for rank in run.ranks:
            directory = made.directory / f"rank-{rank.number}"
            directory.mkdir()
            for name, table in rank.tables.items():
                write_table(directory, table, name)
            write_rank_manifest(directory, _rank_manifest(run, rank))
        write_run_manifest(made.directory, manifest)
    return read_run(path)


def _rank_manifest(run: ImportedRun, rank: ImportedRank) -> RankManifest:
    value = {
        "devices": [],
        "checks": [],
        "pauses": [],
        "damaged": [],
        **rank.facts,
        "schema_version": SCHEMA_VERSION,
        "rank": rank.number,
        "recorder": run.format,
        "status": "closed",
        "notes": list(rank.notes),
    }
    return RankManifest.from_json(value)


def _run_manifest(run: ImportedRun) -> RunManifest:
    value = {
        "command": [],
        "settings": {},
        "started_ns": 0,
        **run.facts,
        "schema_version": SCHEMA_VERSION,
        "gpuledger_version": __version__,
        "run_id": os.urandom(8).hex(),
        "name": run.name,
        "status": "complete",
        "imported": {"format": run.format, "files": list(run.files), "unread": list(run.unread)},
        "notes": list(run.notes),
    }
    return RunManifest.from_json(value)
