"""A journal file that grows by one entry per recorded step, written when the step ends.

One part per step would mean one file per step and take milliseconds. An entry is a single ``write`` of data that exists
already. The file is opened and closed for each entry, so that no file descriptor stays open in the program.

The file begins with :data:`MAGIC`. An entry is its length and checksum (:data:`_HEAD`), then the length of a JSON text,
that text, and the columns' values one after another. The text has the keys of a part's text, and ``rows``, the number
of rows of each table. A table's columns follow in the order of the journal's list of columns, little-endian.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.errors import InputError
from gpuledger.files.writing import open_for_writing

SUFFIX = ".log"
MAGIC = b"GPULEDGER JOURNAL LOG 1\n"
_HEAD = struct.Struct("<QI")
_LENGTH = struct.Struct("<I")

LARGEST_BYTES = 8 << 20
"""Maximum size of a file, so that reading one needs little memory. The next entry then begins a new file."""

Columns = Mapping[str, Mapping[str, str]]
Content = tuple[dict[str, NDArray[Any]], dict[str, Any]]


def journal_files(directory: Path) -> list[Path]:
    """Return the files of a journal in the order of their creation."""
    return sorted(place for place in directory.glob("*") if place.suffix in (".npz", SUFFIX))


def pack_entry(text: Mapping[str, Any], rows: Mapping[str, int], values: Iterable[bytes]) -> bytes:
    """Return an entry. ``values`` are the columns of the tables in ``rows``."""
    header = json.dumps({**text, "rows": rows}).encode("utf-8", "surrogatepass")
    payload = b"".join((_LENGTH.pack(len(header)), header, *values))
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


class JournalLog:
    """A file to append entries to. Created with the first entry."""

    def __init__(self, path: Path) -> None:
        self.size_bytes = 0
        self._path = path
        self._inode = -1

    def append(self, entry: bytes) -> None:
        """Append an entry.

        Raises:
            OSError: it cannot be written, or the file is not the one written before. Earlier entries are kept.
        """
        first = not self.size_bytes
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        flags |= os.O_CREAT | os.O_EXCL if first else 0
        with open_for_writing(self._path, flags, "ab", buffering=0) as file:
            try:
                if first:
                    self._write(file.fileno(), MAGIC + entry)
                else:
                    self._write_next(file.fileno(), entry)
            except BaseException:  # the program's signal handler can raise here, too
                if first:  # an empty file would prevent the next entry from creating one
                    self._path.unlink()
                raise

    def _write_next(self, place: int, entry: bytes) -> None:
        found = os.fstat(place)
        if (found.st_ino, found.st_size) != (self._inode, self.size_bytes):
            raise OSError(errno.ESTALE, "another process has written to this file", str(self._path))
        try:
            self._write(place, entry)
        except BaseException:  # an incomplete entry would end the journal here
            os.ftruncate(place, self.size_bytes)
            raise

    def _write(self, place: int, content: bytes) -> None:
        self._inode = os.fstat(place).st_ino
        written = 0
        while written < len(content):  # a nearly full disk can accept only part of the data
            written += os.write(place, content[written:])
        self.size_bytes += written


def read_log(path: Path, columns: Columns, texts: Iterable[str]) -> tuple[Content, str | None]:
    """Return arrays by ``table.column`` and texts of all entries joined, and a description of any damage.

    Entries before the damage are kept. Memory use is a small multiple of the file size.

    Args:
        path: The file.
        columns: Every table's columns with their numpy types.
        texts: The keys of an entry's text: lists are joined; in ``facts``, later values override earlier ones.
    """
    gathered: dict[str, bytearray] = {}
    texts_read: dict[str, Any] = {name: {} if name == "facts" else [] for name in texts}
    problem = None
    try:
        with memoryview(path.read_bytes()) as content:
            _read_entries(content, columns, gathered, texts_read)
    except Exception as error:  # any exception that json and numpy raise for damaged bytes
        problem = f"{path.name}: damaged recording: {error.message if isinstance(error, InputError) else error}"
    arrays = {}
    for name, values in gathered.items():
        table, _, column = name.partition(".")
        arrays[name] = np.frombuffer(values, np.dtype(columns[table][column]).newbyteorder("<"))
    return (arrays, texts_read), problem


def _read_entries(
    content: memoryview, columns: Columns, gathered: dict[str, bytearray], texts_read: dict[str, Any]
) -> None:
    if content[: len(MAGIC)] != MAGIC:
        raise InputError("not a recording file of gpuledger")
    place = len(MAGIC)
    while place < len(content):
        if len(content) - place < _HEAD.size:
            raise InputError("the last entry is cut off")
        length, checksum = _HEAD.unpack_from(content, place)
        place += _HEAD.size
        payload = content[place : place + length]
        if len(payload) < length:
            raise InputError("the last entry is cut off")
        if zlib.crc32(payload) != checksum:
            raise InputError(f"the checksum of the entry at byte {place} does not match")
        _read_entry(payload, columns, gathered, texts_read)
        place += length


def _read_entry(
    payload: memoryview, columns: Columns, gathered: dict[str, bytearray], texts_read: dict[str, Any]
) -> None:
    """Add one entry; nothing of it if it is damaged."""
    begin = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
    text = json.loads(bytes(payload[_LENGTH.size : begin]).decode("utf-8", "surrogatepass"))
    rows = text["rows"]
    sizes = [
        (f"{table}.{column}", rows[table] * np.dtype(kind).itemsize)
        for table in rows
        for column, kind in columns[table].items()
    ]
    if any(size < 0 for _, size in sizes) or sum(size for _, size in sizes) != len(payload) - begin:
        raise InputError("an entry's columns do not have the stated length")
    if not all(isinstance(text[name], type(kept)) for name, kept in texts_read.items()):
        raise InputError("an entry's strings have the wrong type")
    for name, size in sizes:
        gathered.setdefault(name, bytearray()).extend(payload[begin : begin + size])
        begin += size
    for name, kept in texts_read.items():
        kept.update(text[name]) if isinstance(kept, dict) else kept.extend(text[name])
