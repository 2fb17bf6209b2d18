"""The operator measurements that come with gpuledger, for users who have measured nothing yet."""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from gpuledger.config import DEFAULT_DATABASE
from gpuledger.ops.database.contents import Contents, contents_of, read_parquet
from gpuledger.ops.database.readable import ExportedDatabase, ReadableDatabase, open_readable

SHIPPED = "gpuledger's own database"
SHIPPED_NOTE = (
    f"There is no {DEFAULT_DATABASE} here: this uses the measurements of an NVIDIA H200 that come with gpuledger."
)
FILE = "nvidia_h200.parquet"


@cache
def shipped_contents() -> Contents:
    """Return the measurements in this package. They are read once per process, so do not change them."""
    with as_file(files("gpuledger.ops.database").joinpath("measured", FILE)) as path:
        return read_parquet(path, is_ours=True)


def named_database(url: str | None) -> str | None:
    """Return the database to read: the named one, or else the default one if it exists; None for the shipped one."""
    return url or (DEFAULT_DATABASE if Path(DEFAULT_DATABASE).is_file() else None)


def open_or_shipped(url: str | None) -> ReadableDatabase:
    """Return a database for reading. If none is named, it is ``operators.db`` here, or else the shipped one.

    Raises:
        InputError: the named database does not exist, is damaged, or cannot be read by this version.
    """
    named = named_database(url)
    return ExportedDatabase(SHIPPED, shipped_contents()) if named is None else open_readable(named)


def contents_or_shipped(url: str | None) -> Contents:
    """Return the contents of the same database."""
    named = named_database(url)
    return shipped_contents() if named is None else contents_of(named)


def shipped_notes(url: str | None) -> tuple[str, ...]:
    """Return a note if the shipped database is read."""
    return (SHIPPED_NOTE,) if named_database(url) is None else ()
