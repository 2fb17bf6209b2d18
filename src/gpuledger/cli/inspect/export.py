"""``gpuledger export``: the tables as CSV, Parquet or JSON, or the run as PyTorch's memory snapshot."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.cli.common import force_option, open_run, output_option, print_notes, run_argument
from gpuledger.errors import UsageError
from gpuledger.files.writing import is_taken
from gpuledger.files.writing import output as written_to
from gpuledger.model.schema.tables import TABLES
from gpuledger.units import counted

if TYPE_CHECKING:
    from gpuledger.model.run import Run

STDOUT = "-"
SNAPSHOT = "torch-snapshot"


@click.command(
    "export",
    epilog="""\b
Examples:
  gpuledger export train.ledger --to torch-snapshot -o train.pickle
  gpuledger export train.ledger --to csv --table blocks -o - | head""",
)
@run_argument()
@click.option(
    "--to", "form", required=True, type=click.Choice(["csv", "parquet", "json", SNAPSHOT]), help="Format to write."
)
@click.option(
    "--table",
    type=click.Choice(list(TABLES)),
    metavar="NAME",
    help=f"Table to export: {', '.join(TABLES)}.  [default: all]",
)
@output_option(
    "File to write, or directory if there are several files (csv or parquet of all tables, torch-snapshot of several "
    "ranks); - is stdout.  [default: named after the run]",
    "PATH",
)
@force_option()
def export_command(run_path: str, form: str, table: str | None, output: str | None, force: bool) -> None:
    """Export a run as tables or as a PyTorch snapshot.

    Tables are written as CSV, Parquet or JSON, with the rank in the first column. A snapshot opens in PyTorch's memory
    viewer, https://pytorch.org/memory_viz.

    Names are written unchanged. A spreadsheet may interpret a name that begins with = as a formula.
    """
    run = open_run(run_path)
    if form == SNAPSHOT:
        _export_snapshot(run, table, output, force)
        return
    one_file = form == "json" or table is not None
    if output == STDOUT:
        if not one_file or form == "parquet":
            raise UsageError(
                f"-o -: cannot write {form} to stdout", hint="Use -o PATH, --to json, or --to csv with --table"
            )
        _write_stdout(run, form, table)
        return
    path = Path(output) if output else Path(_default_name(run, form, table))
    _refuse(path, one_file, force)
    rows = _write_file(run, form, table, path) if one_file else _write_directory(run, form, path)
    print_notes([f"gpuledger: wrote {counted(rows, 'row')} to {path}"])


def _export_snapshot(run: Run, table: str | None, output: str | None, force: bool) -> None:
    """Write one file, or one for each of several ranks into a directory.

    Raises:
        UsageError: ``--table`` or ``-o -`` is given, or it would overwrite something.
    """
    from gpuledger.export.snapshot import write_snapshot, write_snapshots

    if table is not None or output == STDOUT:
        raise UsageError(f"--to {SNAPSHOT}: cannot be combined with --table or -o -", hint="Use -o FILE alone")
    one_file = len(run.ranks) == 1
    path = Path(output) if output else Path(f"{run.name}.pickle" if one_file else f"{run.name}-snapshots")
    _refuse(path, one_file, force)
    if one_file:
        with written_to(path) as stream:
            count = write_snapshot(run.ranks[0], stream)
    else:
        count = write_snapshots(run, path)
    print_notes([f"gpuledger: wrote {count:,} events to {path}, open it at https://pytorch.org/memory_viz"])


def _default_name(run: Run, form: str, table: str | None) -> str:
    name = f"{run.name}-{table}" if table else run.name
    return f"{name}.{form}" if form == "json" or table else f"{name}-{form}"


def _refuse(path: Path, one_file: bool, force: bool) -> None:
    """Raise where writing would hit something else.

    Raises:
        UsageError: ``path`` exists and ``--force`` is not given, or it is of the wrong kind.
    """
    if one_file and path.is_dir():
        raise UsageError(f"{path}: is a directory", hint="Give the name of a file with -o")
    if not one_file and path.exists() and not path.is_dir():
        raise UsageError(f"{path}: is not a directory", hint="Give the name of a directory with -o")
    occupied = is_taken(path) if one_file else path.exists() and any(path.iterdir())
    if occupied and not force:
        state = "already exists" if one_file else "already exists and is not empty"
        raise UsageError(f"{path}: {state}", hint="Choose another name with -o, or overwrite it with --force")


def _write_file(run: Run, form: str, table: str | None, path: Path) -> int:
    from gpuledger.export.tables import write_csv, write_json_tables, write_parquet

    with written_to(path) as stream:
        if form == "json" or table is None:
            return write_json_tables(run, (table,) if table else tuple(TABLES), stream)
        return (write_csv if form == "csv" else write_parquet)(run, table, stream)


def _write_directory(run: Run, form: str, path: Path) -> int:
    from gpuledger.export.tables import write_csv, write_directory, write_parquet

    return sum(write_directory(run, path, form, write_csv if form == "csv" else write_parquet).values())


def _write_stdout(run: Run, form: str, table: str | None) -> None:
    """Write to stdout as bytes; Arrow must not close it."""
    from gpuledger.export.tables import write_csv, write_json_tables

    stream = sys.stdout.buffer
    if form == "json" or table is None:
        write_json_tables(run, (table,) if table else tuple(TABLES), stream)
    else:
        text = io.BytesIO()
        write_csv(run, table, text)
        rest = text.getbuffer()
        while rest:  # with PYTHONUNBUFFERED, a write can be of a part
            rest = rest[stream.write(rest) :]
    stream.flush()
