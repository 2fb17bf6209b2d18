"""Databases that are only read: a store, or a Parquet file that ``ops export`` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.contents import PARQUET, Contents, read_parquet
from gpuledger.ops.database.records import Environment, Record


class ReadableDatabase(Protocol):
    """What sums and predictions read."""

    @property
    def url(self) -> str:
        """Return the file or URL."""

    def keys(self) -> dict[str, OperatorKey]:
        """Return all keys by digest."""

    def environments(self) -> dict[str, Environment]:
        """Return all environments by digest."""

    def records(self) -> list[Record]:
        """Return all records, oldest first."""


class ExportedDatabase:
    """A Parquet export."""

    def __init__(self, url: str, contents: Contents) -> None:
        self.url = url
        self._keys: Mapping[str, OperatorKey] = contents.keys
        self._environments: Mapping[str, Environment] = contents.environments
        self._records = sorted(contents.records, key=lambda record: (record.measured_ns, record.digest))

    def keys(self) -> dict[str, OperatorKey]:
        """Return all keys by digest."""
        return dict(self._keys)

    def environments(self) -> dict[str, Environment]:
        """Return all environments by digest."""
        return dict(self._environments)

    def records(self) -> list[Record]:
        """Return all records, oldest first."""
        return list(self._records)


def open_readable(url: str) -> ReadableDatabase:
    """Return the database at a path or URL, or in a Parquet file, for reading. Writes nothing.

    Raises:
        InputError: it does not exist, is damaged, or cannot be read by this version.
    """
    if url.endswith(PARQUET) and "://" not in url:
        return ExportedDatabase(url, read_parquet(Path(url)))
    from gpuledger.ops.database.operator_database import open_existing

    return open_existing(url)
