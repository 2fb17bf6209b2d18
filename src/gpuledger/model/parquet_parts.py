"""Read the Parquet parts of a run's tables, with size limits, and check them against the table's columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.files.reading import MIB, open_regular, reading
from gpuledger.model.accounts import CATEGORIES, PHASES
from gpuledger.model.arrow_numbers import decoded_texts, known_numbers, text_lengths
from gpuledger.model.bounds import check_bounds

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

UNPACKED_BYTES = 192 * MIB
"""Unpacked size that the parts of one process can always have. Above it, :data:`UNPACKED_TIMES` their size on disk."""
UNPACKED_TIMES = 8
_VALUE_BYTES = 8
"""Minimum size of a value in memory, whatever its encoding in the file."""
_UNKNOWN_PHASE = ""
"""Phase in a run that was imported from a file without phases."""
_WORDS = {
    "blocks.category": CATEGORIES,
    "blocks.phase": (*PHASES, _UNKNOWN_PHASE),
    "spans.phase": (*PHASES, _UNKNOWN_PHASE),
}
"""Columns with a fixed set of values."""


def check_unpacked(parts: Iterable[Path], place_of: Callable[[Path], str]) -> None:
    """Check the unpacked size of the parts of one process, from their metadata.

    Args:
        parts: The files.
        place_of: Returns the name of a file for errors.

    Raises:
        InputError: the size is too large for files of their size, or one is damaged or not a regular file.
    """
    import pyarrow.parquet as pq

    sizes = UnpackedSizes()
    for part in parts:
        with (
            reading(place_of(part), "damaged part"),
            open_regular(part) as stream,
            pq.ParquetFile(stream, pre_buffer=False) as file,
        ):
            sizes.add(part, file.metadata)


class UnpackedSizes:
    """The unpacked size of the parts of one process that were opened so far."""

    def __init__(self) -> None:
        self._parts: set[Path] = set()
        self._file_bytes = self._unpacked_bytes = 0

    def add(self, part: Path, metadata: pq.FileMetaData) -> None:
        """Add a part, once, before its columns are read.

        Raises:
            ValueError: the parts unpack to too much for files of their size.
        """
        if part in self._parts:
            return
        self._parts.add(part)
        self._file_bytes += part.stat().st_size
        self._unpacked_bytes += _unpacked_bytes(metadata)
        if self._unpacked_bytes > max(UNPACKED_BYTES, UNPACKED_TIMES * self._file_bytes):
            size_mib = self._unpacked_bytes >> 20
            raise ValueError(f"it unpacks to {size_mib:,} MiB, which is too much for its size on disk")


def _unpacked_bytes(metadata: pq.FileMetaData) -> int:
    stated: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(stated, int(metadata.num_rows) * int(metadata.num_columns) * _VALUE_BYTES)


def read_part(part: Path, table: str, schema: pa.Schema, place: str, sizes: UnpackedSizes) -> pa.Table:
    """Return some columns of one part.

    Args:
        part: The file.
        table: Name of the table.
        schema: The wanted columns. A nullable column that is newer than the file is null.
        place: Name of the file in errors.
        sizes: The unpacked size of the parts of this process so far.

    Raises:
        InputError: it is damaged, unpacks to too much, lacks a column, or contains invalid values.
    """
    import pyarrow.parquet as pq

    with reading(place, "damaged part"):
        texts = [field.name for field in schema if str(field.type) == "string"]
        with open_regular(part) as stream, pq.ParquetFile(stream, read_dictionary=texts, pre_buffer=False) as file:
            sizes.add(part, file.metadata)
            have = set(file.schema_arrow.names)
            # Read in this thread only, and without pre_buffer: a thread of pyarrow that still holds the stream at exit
            # aborts the process.
            raw = file.read(columns=[name for name in schema.names if name in have], use_threads=False)
        return _checked(raw, table, schema, part.stat().st_size)


def _checked(raw: pa.Table, table: str, schema: pa.Schema, file_bytes: int) -> pa.Table:
    """Return the columns with the types of ``schema``.

    Raises:
        ValueError: a column is missing, has nulls but is not nullable, or has an invalid value.
    """
    import pyarrow as pa

    columns = []
    for field in schema:
        place = f"{table}.{field.name}"
        if field.name not in raw.schema.names:
            if not field.nullable:
                raise ValueError(f"column {field.name} is missing")
            columns.append(pa.chunked_array([pa.nulls(raw.num_rows, field.type)]))
            continue
        column = raw.column(field.name)
        if pa.types.is_string(field.type):
            _check_text_bytes(column, place, file_bytes)
        column = _as_type(column, field.type)
        column.validate(full=True)
        if column.null_count and not field.nullable:
            raise ValueError(f"{place}: {column.null_count:,} values are null")
        _check_values(column, place)
        columns.append(column)
    return pa.table(columns, schema=schema)


def _as_type(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Return a column with the type of the schema. Texts are read with one copy of each, and have one per row here."""
    import pyarrow as pa

    if column.type == wanted:
        return column
    if pa.types.is_dictionary(column.type) and column.type.value_type == wanted:
        return pa.chunked_array([decoded_texts(chunk) for chunk in column.chunks], wanted)
    return column.cast(wanted)


def _check_text_bytes(column: pa.ChunkedArray, place: str, file_bytes: int) -> None:
    """Check the size of texts with one copy per row. A file stores a text that many rows share only once."""
    total_bytes = 0
    for chunk in column.chunks:
        if not hasattr(chunk, "dictionary"):
            total_bytes += chunk.nbytes
            continue
        chunk.validate(full=True)  # so that every index is one of the dictionary
        total_bytes += int(text_lengths(chunk.dictionary)[known_numbers(chunk.indices)].sum())
    if total_bytes > max(UNPACKED_BYTES, UNPACKED_TIMES * file_bytes):
        raise ValueError(
            f"{place}: its strings unpack to {total_bytes >> 20:,} MiB, which is too much for the file's size on disk"
        )


def _check_values(column: pa.ChunkedArray, place: str) -> None:
    import pyarrow as pa

    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        for chunk in column.chunks:
            check_bounds(known_numbers(chunk), place)
    elif pa.types.is_dictionary(column.type):
        _check_words([chunk.dictionary for chunk in column.chunks], place)


def _check_words(dictionaries: list[Any], place: str) -> None:
    words = {word for one in dictionaries for word in one.to_pylist()}
    if None in words:
        raise ValueError(f"{place}: a category is null")
    unknown = words - set(_WORDS.get(place, words))
    if unknown:
        raise ValueError(f"{place}: unknown category {min(unknown)!r:.60}")
