"""Runs of alike dictionaries inside a pickle, read as columns without making a dictionary of each.

A memory snapshot is mostly one list of dictionaries that name the same keys in the same order: each starts with the
same few bytes. All places with these bytes are candidates; all candidates are parsed at once, field by field, and a
run is a chain in which each record ends exactly where the next begins. A chain that starts at a true opcode is then
parsed as the unpickler would parse it, so a chance likeness inside a text cannot be taken for a record.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
Bytes = NDArray[np.uint8]

MIN_RUN = 32
MAX_PREFIXES = 16
MAX_SHAPES = 8
MAX_FIELDS = 32
SAMPLED = 48
MAX_LIST = 1_024
AT_ONCE = 1 << 17
_GET1, _GET4, _MEMOIZE, _MARK, _SETITEMS, _APPENDS = ord("h"), ord("j"), 0x94, ord("("), ord("u"), ord("e")


class Kind(IntEnum):
    """What a field of a record holds; ``Column.value`` means something else for each."""

    MISSING = 0
    NUMBER = 1
    """The number itself."""
    REFERENCE = 2
    """A memo number."""
    TEXT = 3
    """Where the text's opcode is."""
    LIST = 4
    """Where the list's opcode is; its items are memo numbers."""
    NONE = 5
    PAIR = 6
    """A tuple of two small numbers; not kept."""


@dataclass
class Column:
    """One key of every record: kind, value (see :class:`Kind`), and its place among the record's memo numbers.

    ``end`` is where each list ends; None where the column has none.
    """

    kind: NDArray[np.int8]
    value: I64
    memo_offset: NDArray[np.int8]
    end: I64 | None = None


@dataclass
class RecordTable:
    """All records that start alike. ``columns`` are by the memo number of their key; ``ends`` -1 is no record.

    ``memo_before`` int64[n + 1] counts the memo numbers of all records before each; ``memo_base`` is -1 until a
    record is reached.
    """

    starts: I64
    ends: I64
    memo_before: I64
    memo_base: I64
    columns: dict[int, Column]


@dataclass
class Run:
    """Records ``first`` to ``last`` of a table, which follow each other in one list."""

    table: RecordTable
    first: int
    last: int
    memo_start: int = -1

    @property
    def end(self) -> int:
        """Return the place after the last record."""
        return int(self.table.ends[self.last])

    @property
    def count(self) -> int:
        """Return the number of records."""
        return self.last - self.first + 1

    @property
    def memo_count(self) -> int:
        """Return how many memo numbers the records take."""
        before = self.table.memo_before
        return int(before[self.last + 1] - before[self.first])

    def begin(self, memo_start: int) -> None:
        """Give the records their memo numbers."""
        self.memo_start = memo_start
        before = self.table.memo_before[self.first : self.last + 1]
        self.table.memo_base[self.first : self.last + 1] = before - before[0] + memo_start

    def row_of(self, memo_number: int) -> int:
        """Return the record that a memo number belongs to."""
        bases = self.table.memo_base[self.first : self.last + 1]
        return self.first + int(np.searchsorted(bases, memo_number, side="right")) - 1


@dataclass
class RecordIndex:
    """The tables of one file, made when a record of a new beginning is met."""

    data: bytes
    _seen: set[bytes] = field(default_factory=set)
    _runs: dict[int, Run] = field(default_factory=dict)

    def run_at(self, place: int) -> Run | None:
        """Return the run that begins at ``place``; None where there is none, or too short a one to be worth it."""
        prefix = self._prefix(place)
        if prefix is None:
            return None
        if prefix not in self._seen and len(self._seen) < MAX_PREFIXES:
            self._seen.add(prefix)
            self._read(prefix, place)
        return self._runs.get(place)

    def _prefix(self, place: int) -> bytes | None:
        """Return the bytes up to the first key: an empty dictionary, kept, a mark, a key that was seen before."""
        if self.data[place + 1 : place + 3] != b"\x94(":
            return None
        key = self.data[place + 3 : place + 4]
        size = {b"h": 5, b"j": 8}.get(key)
        return None if size is None else self.data[place : place + size]

    def _read(self, prefix: bytes, place: int) -> None:
        array = np.frombuffer(self.data, dtype=np.uint8)
        starts = _find(array, prefix, place)
        if starts.size < MIN_RUN:
            return
        table = _read_records(array, starts)
        for run in _runs_of(array, table):
            self._runs[int(table.starts[run.first])] = run


def _find(array: Bytes, prefix: bytes, start: int) -> I64:
    """Return the ascending places from ``start`` on at which ``prefix`` stands."""
    found = []
    width = len(prefix)
    for low in range(start, array.size - width + 1, 16 * AT_ONCE):
        piece = array[low : min(low + 16 * AT_ONCE + width - 1, array.size)]
        count = piece.size - width + 1
        places = np.flatnonzero(piece[:count] == prefix[0])
        for offset in range(1, width):
            places = places[piece[places + offset] == prefix[offset]]
        found.append(places + low)
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def _read_records(array: Bytes, starts: I64) -> RecordTable:
    """Return the records at ``starts``, in as many shapes as they have, up to :data:`MAX_SHAPES`."""
    count = starts.size
    table = RecordTable(
        starts,
        ends=np.full(count, -1, dtype=np.int64),
        memo_before=np.zeros(count + 1, dtype=np.int64),
        memo_base=np.full(count, -1, dtype=np.int64),
        columns={},
    )
    memo_count = np.zeros(count, dtype=np.int64)
    open_rows = np.arange(count)
    for _ in range(MAX_SHAPES):
        keys = _commonest_keys(array, starts[open_rows])
        if not keys:
            break
        for low in range(0, open_rows.size, AT_ONCE):
            _read_shape(array, keys, table, memo_count, open_rows[low : low + AT_ONCE])
        open_rows = open_rows[table.ends[open_rows] < 0]
    np.cumsum(memo_count, out=table.memo_before[1:])
    return table


def _runs_of(array: Bytes, table: RecordTable) -> list[Run]:
    """Return the chains of at least :data:`MIN_RUN` records. Between two, a list may be closed and gone on with."""
    starts, ends = table.starts, table.ends
    if starts.size < MIN_RUN:
        return []
    batch = np.zeros(starts.size - 1, dtype=bool)
    inside = np.flatnonzero((ends[:-1] >= 0) & (ends[:-1] + 2 == starts[1:]))
    batch[inside] = (array[ends[inside]] == _APPENDS) & (array[ends[inside] + 1] == _MARK)
    follows = (ends[:-1] == starts[1:]) | batch
    breaks = np.flatnonzero(~follows)
    firsts = np.concatenate(([0], breaks + 1))
    lasts = np.concatenate((breaks, [starts.size - 1]))
    lasts = np.where(ends[lasts] >= 0, lasts, lasts - 1)
    long = np.flatnonzero(lasts - firsts + 1 >= MIN_RUN)
    return [Run(table, int(firsts[place]), int(lasts[place])) for place in long.tolist()]


# -- one record by hand: which keys it has --------------------------------------------------------------------------


def _commonest_keys(array: Bytes, starts: I64) -> tuple[bytes, ...]:
    """Return the keys that most of a sample of the records have; none where too few are left to be worth it."""
    if starts.size < MIN_RUN:
        return ()
    sample = starts[np.linspace(0, starts.size - 1, SAMPLED).astype(np.int64)]
    found = Counter(_keys_at(array, start) for start in sample.tolist())
    del found[()]
    return found.most_common(1)[0][0] if found else ()


def _keys_at(array: Bytes, start: int) -> tuple[bytes, ...]:
    """Return the opcodes that fetch the keys of the record at ``start``; empty where it is not of the simple kind."""
    keys: list[bytes] = []
    places = np.array([start + 3], dtype=np.int64)
    while len(keys) < MAX_FIELDS and int(places[0]) < array.size:
        place = int(places[0])
        code = int(array[place])
        if code == _SETITEMS:
            return tuple(keys)
        size = {_GET1: 2, _GET4: 5}.get(code)
        if size is None:
            return ()
        keys.append(array[place : place + size].tobytes())
        values = _Values(array, places + size)
        if not values.good[0]:
            return ()
        places = values.after
    return ()


def key_number(key: bytes) -> int:
    """Return the memo number that a fetching opcode asks for."""
    return int.from_bytes(key[1:], "little")


# -- all records of one shape ---------------------------------------------------------------------------------------


def _read_shape(array: Bytes, keys: tuple[bytes, ...], table: RecordTable, memo_count: I64, rows: I64) -> None:
    """Parse the records ``rows`` as ones with these ``keys``; those that are so get their end and their columns."""
    places = table.starts[rows] + 3
    good = np.ones(rows.size, dtype=bool)
    memos = np.ones(rows.size, dtype=np.int64)
    read = []
    for key in keys:
        good &= _stands(array, places, key)
        values = _Values(array, places + len(key))
        good &= values.good
        read.append((key_number(key), values, memos.copy()))
        memos += values.memos
        places = values.after
    good &= _at(array, places) == _SETITEMS
    kept = rows[good]
    table.ends[kept] = places[good] + 1
    memo_count[kept] = memos[good]
    for number, values, offset in read:
        column = table.columns.setdefault(number, _empty_column(table.starts.size))
        column.kind[kept] = values.kind[good]
        column.value[kept] = values.value[good]
        column.memo_offset[kept] = offset[good]
        if (values.kind == Kind.LIST).any():
            column.end = np.zeros(table.starts.size, dtype=np.int64) if column.end is None else column.end
            column.end[kept] = values.after[good]


def _empty_column(count: int) -> Column:
    return Column(
        kind=np.zeros(count, dtype=np.int8),
        value=np.zeros(count, dtype=np.int64),
        memo_offset=np.zeros(count, dtype=np.int8),
    )


def _at(array: Bytes, places: I64) -> Bytes:
    """Return the bytes at ``places``; past the end, the last byte, which is STOP or nothing of use."""
    taken: Bytes = array.take(places, mode="clip")
    return taken


def _stands(array: Bytes, places: I64, piece: bytes) -> NDArray[np.bool_]:
    good = np.ones(places.size, dtype=bool)
    for offset, byte in enumerate(piece):
        good &= _at(array, places + offset) == byte
    return good


_INTEGER_BYTES = {ord("K"): 1, ord("M"): 2, ord("J"): 4}


class _Values:
    """The values at many places, parsed at once. ``after`` is where each ends, ``memos`` how many numbers it takes."""

    def __init__(self, array: Bytes, places: I64) -> None:
        self.array = array
        self.places = places
        self.good = np.zeros(places.size, dtype=bool)
        self.kind = np.zeros(places.size, dtype=np.int8)
        self.value = np.zeros(places.size, dtype=np.int64)
        self.after = places.copy()
        self.memos = np.zeros(places.size, dtype=np.int64)
        codes = _at(array, places)
        for code in np.flatnonzero(np.bincount(codes, minlength=256)).tolist():
            rows = np.flatnonzero(codes == code) if codes.size > 1 else np.zeros(1, dtype=np.int64)
            self._read(code, rows)

    def _read(self, code: int, rows: I64) -> None:
        places = self.places[rows]
        if code in _INTEGER_BYTES:
            size = _INTEGER_BYTES[code]
            self._keep(rows, Kind.NUMBER, _little(self.array, places + 1, size, signed=code == ord("J")), 1 + size)
            self._pairs(rows)
        elif code == 0x8A:
            self._long(rows)
        elif code in (_GET1, _GET4):
            size = 1 if code == _GET1 else 4
            self._keep(rows, Kind.REFERENCE, _little(self.array, places + 1, size), 1 + size)
        elif code == 0x8C:
            after = places + 2 + _at(self.array, places + 1)
            self._keep(rows, Kind.TEXT, places, after + 1 - places, memos=1)
            self.good[rows] = _at(self.array, after) == _MEMOIZE
        elif code in (0x88, 0x89):
            self._keep(rows, Kind.NUMBER, np.full(rows.size, int(code == 0x88)), 1)
        elif code == ord("N"):
            self._keep(rows, Kind.NONE, places, 1)
        elif code == ord("]"):
            self._list(rows)

    def _keep(self, rows: I64, kind: Kind, value: I64, size: int | I64, memos: int = 0) -> None:
        self.good[rows] = True
        self.kind[rows] = kind
        self.value[rows] = value
        self.after[rows] = self.places[rows] + size
        self.memos[rows] = memos

    def _long(self, rows: I64) -> None:
        sizes = _at(self.array, self.places[rows] + 1)
        for size in np.unique(sizes).tolist():
            mine = rows[sizes == size]
            if 0 < size <= 8:
                value = _little(self.array, self.places[mine] + 2, size, signed=True)
                self._keep(mine, Kind.NUMBER, value, 2 + size)

    def _pairs(self, rows: I64) -> None:
        """Where a small number is followed by another one, read both as a tuple of two."""
        after = self.after[rows]
        codes = _at(self.array, after)
        for code, size in _INTEGER_BYTES.items():
            mine = rows[codes == code]
            if mine.size:
                end = self.after[mine] + 1 + size
                self.kind[mine] = Kind.PAIR
                self.good[mine] = _stands(self.array, end, b"\x86\x94")
                self.after[mine] = end + 2
                self.memos[mine] = 1

    def _list(self, rows: I64) -> None:
        """Read lists whose items were all seen before: ``]`` kept, then nothing, one item, or a mark and several."""
        places = self.places[rows]
        self._keep(rows, Kind.LIST, places, 2, memos=1)
        self.good[rows] = _at(self.array, places + 1) == _MEMOIZE
        codes = _at(self.array, places + 2)
        for code, size in ((_GET1, 2), (_GET4, 5)):
            one = rows[(codes == code) & (_at(self.array, places + 2 + size) == ord("a"))]
            self.after[one] = self.places[one] + 3 + size
        several = rows[codes == _MARK]
        self.after[several] += 1
        self.good[several] = False
        for _ in range(MAX_LIST):
            if not several.size:
                return
            codes = _at(self.array, self.after[several])
            self.after[several] += np.where(codes == _GET4, 5, np.where(codes == _GET1, 2, 1))
            self.good[several[codes == _APPENDS]] = True
            several = several[(codes == _GET1) | (codes == _GET4)]


def _little(array: Bytes, places: I64, size: int, *, signed: bool = False) -> I64:
    """Return the little-endian integers of ``size`` bytes at ``places``."""
    value = np.zeros(places.size, dtype=np.int64)
    for offset in range(size):
        value |= _at(array, places + offset).astype(np.int64) << (8 * offset)
    if signed and size < 8:
        value -= (value >> (8 * size - 1)) << (8 * size)
    return value
