"""Runs of similar dictionaries in a pickle, read as columns without building a dictionary for each.

A memory snapshot is mostly one list of dictionaries that have the same keys in the same order, so each one starts with
the same few bytes. All positions with these bytes are candidates. All candidates are parsed at once, field by field. A
run is a chain of records in which the end of each is the start of the next. A chain that starts at a true opcode is
parsed as the unpickler would parse it, so equal bytes inside a text are never read as a record.
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


class FieldKind(IntEnum):
    """Type of a record's field; it defines the meaning of ``Column.value``."""

    MISSING = 0
    NUMBER = 1
    """The number itself."""
    REFERENCE = 2
    """A memo number."""
    TEXT = 3
    """Position of the text's opcode."""
    LIST = 4
    """Position of the list's opcode; its items are memo numbers."""
    NONE = 5
    PAIR = 6
    """A tuple of two small numbers; not stored."""


@dataclass
class RecordField:
    """One key of every record: kind, value (see :class:`FieldKind`), and its index among the record's memo numbers.

    ``end`` is the end of each list; None if the column has none.
    """

    kind: NDArray[np.int8]
    value: I64
    memo_offset: NDArray[np.int8]
    end: I64 | None = None


@dataclass
class RecordTable:
    """All records with the same first bytes. ``columns`` are by the memo number of their key; ``ends`` -1: no record.

    ``memo_before`` int64[n + 1] counts the memo numbers of all records before each one; ``memo_base`` is -1 until a
    record is reached.
    """

    starts: I64
    ends: I64
    memo_before: I64
    memo_base: I64
    columns: dict[int, RecordField]


@dataclass
class RecordRange:
    """Records ``first`` to ``last`` of a table, which are adjacent in one list."""

    table: RecordTable
    first: int
    last: int
    memo_start: int = -1

    @property
    def end(self) -> int:
        """Return the position after the last record."""
        return int(self.table.ends[self.last])

    @property
    def count(self) -> int:
        """Return the number of records."""
        return self.last - self.first + 1

    @property
    def memo_count(self) -> int:
        """Return the number of memo numbers of the records."""
        before = self.table.memo_before
        return int(before[self.last + 1] - before[self.first])

    def begin(self, memo_start: int) -> None:
        """Assign memo numbers to the records."""
        self.memo_start = memo_start
        before = self.table.memo_before[self.first : self.last + 1]
        self.table.memo_base[self.first : self.last + 1] = before - before[0] + memo_start

    def row_of(self, memo_number: int) -> int:
        """Return the record that contains a memo number."""
        bases = self.table.memo_base[self.first : self.last + 1]
        return self.first + int(np.searchsorted(bases, memo_number, side="right")) - 1


@dataclass
class RecordIndex:
    """The tables of one file. A table is built when the first record with new first bytes is read."""

    data: bytes
    _seen: set[bytes] = field(default_factory=set)
    _runs: dict[int, RecordRange] = field(default_factory=dict)

    def run_at(self, place: int) -> RecordRange | None:
        """Return the run that starts at ``place``; None if there is none, or fewer than :data:`MIN_RUN` records."""
        prefix = self._prefix(place)
        if prefix is None:
            return None
        if prefix not in self._seen and len(self._seen) < MAX_PREFIXES:
            self._seen.add(prefix)
            self._read(prefix, place)
        return self._runs.get(place)

    def _prefix(self, place: int) -> bytes | None:
        """Return the bytes up to the first key: an empty dictionary, memoized; a mark; and a known key."""
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
    """Return the positions of ``prefix`` from ``start`` on, in ascending order."""
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
    """Return the records at ``starts``, which can have up to :data:`MAX_SHAPES` different sets of keys."""
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


def _runs_of(array: Bytes, table: RecordTable) -> list[RecordRange]:
    """Return the chains of at least :data:`MIN_RUN` records. A list in batches has opcodes between some records."""
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
    return [RecordRange(table, int(firsts[place]), int(lasts[place])) for place in long.tolist()]


# -- a single record: its keys --------------------------------------------------------------------------------------


def _commonest_keys(array: Bytes, starts: I64) -> tuple[bytes, ...]:
    """Return the most frequent keys in a sample of the records; empty if there are too few records."""
    if starts.size < MIN_RUN:
        return ()
    sample = starts[np.linspace(0, starts.size - 1, SAMPLED).astype(np.int64)]
    found = Counter(_keys_at(array, start) for start in sample.tolist())
    del found[()]
    return found.most_common(1)[0][0] if found else ()


def _keys_at(array: Bytes, start: int) -> tuple[bytes, ...]:
    """Return the opcodes that fetch the keys of the record at ``start``; empty if it has other opcodes."""
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
    """Return the memo number that an opcode fetches."""
    return int.from_bytes(key[1:], "little")


# -- all records of one shape ---------------------------------------------------------------------------------------


def _read_shape(array: Bytes, keys: tuple[bytes, ...], table: RecordTable, memo_count: I64, rows: I64) -> None:
    """Parse the records ``rows`` with these ``keys``. Those that match get their end and their columns."""
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
        if (values.kind == FieldKind.LIST).any():
            column.end = np.zeros(table.starts.size, dtype=np.int64) if column.end is None else column.end
            column.end[kept] = values.after[good]


def _empty_column(count: int) -> RecordField:
    return RecordField(
        kind=np.zeros(count, dtype=np.int8),
        value=np.zeros(count, dtype=np.int64),
        memo_offset=np.zeros(count, dtype=np.int8),
    )


def _at(array: Bytes, places: I64) -> Bytes:
    """Return the bytes at ``places``; past the end, the last byte, which is STOP or of no use."""
    taken: Bytes = array.take(places, mode="clip")
    return taken


def _stands(array: Bytes, places: I64, piece: bytes) -> NDArray[np.bool_]:
    good = np.ones(places.size, dtype=bool)
    for offset, byte in enumerate(piece):
        good &= _at(array, places + offset) == byte
    return good


_INTEGER_BYTES = {ord("K"): 1, ord("M"): 2, ord("J"): 4}


class _Values:
    """The values at many positions, parsed at once. ``after`` are their ends, ``memos`` counts their memo numbers."""

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
            self._keep(rows, FieldKind.NUMBER, _little(self.array, places + 1, size, signed=code == ord("J")), 1 + size)
            self._pairs(rows)
        elif code == 0x8A:
            self._long(rows)
        elif code in (_GET1, _GET4):
            size = 1 if code == _GET1 else 4
            self._keep(rows, FieldKind.REFERENCE, _little(self.array, places + 1, size), 1 + size)
        elif code == 0x8C:
            after = places + 2 + _at(self.array, places + 1)
            self._keep(rows, FieldKind.TEXT, places, after + 1 - places, memos=1)
            self.good[rows] = _at(self.array, after) == _MEMOIZE
        elif code in (0x88, 0x89):
            self._keep(rows, FieldKind.NUMBER, np.full(rows.size, int(code == 0x88)), 1)
        elif code == ord("N"):
            self._keep(rows, FieldKind.NONE, places, 1)
        elif code == ord("]"):
            self._list(rows)

    def _keep(self, rows: I64, kind: FieldKind, value: I64, size: int | I64, memos: int = 0) -> None:
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
                self._keep(mine, FieldKind.NUMBER, value, 2 + size)

    def _pairs(self, rows: I64) -> None:
        """Parse tuples of two small numbers: a small number that is followed by another one."""
        after = self.after[rows]
        codes = _at(self.array, after)
        for code, size in _INTEGER_BYTES.items():
            mine = rows[codes == code]
            if mine.size:
                end = self.after[mine] + 1 + size
                self.kind[mine] = FieldKind.PAIR
                self.good[mine] = _stands(self.array, end, b"\x86\x94")
                self.after[mine] = end + 2
                self.memos[mine] = 1

    def _list(self, rows: I64) -> None:
        """Read lists with known items only: ``]`` memoized, then nothing, one item, or a mark and several items."""
        places = self.places[rows]
        self._keep(rows, FieldKind.LIST, places, 2, memos=1)
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
