"""Read pickles of plain values without the unpickler: no class, no call, and memory bounded by the file's size.

The standard unpickler executes the file as a program. Even with every class rejected, nine bytes (a memo index) can
make it allocate gigabytes. Here each opcode is one small method; opcodes without one are rejected by name. A memory
snapshot consists mostly of lists of similar dictionaries, which are read by :mod:`.pickle_records`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NoReturn

from gpuledger.errors import InputError
from gpuledger.formats.snapshot.pickle_records import RecordIndex, RecordRange

MAX_DEPTH = 1_000
MAX_STACK = 1_000_000
MAX_LONG_BYTES = 16
COST_PER_BYTE = 9
"""Maximum bytes of values per byte of the file. A real snapshot needs less, even if read value by value."""
COST_FLOOR_BYTES = 8 << 20
_OPENED_BYTES = 72
_NUMBER_BYTES = 32
_TEXT_BYTES = 64
_ENTRY_BYTES = 44

_CODE = {
    ord("c"): "GLOBAL",
    0x93: "STACK_GLOBAL",
    ord("i"): "INST",
    ord("o"): "OBJ",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    ord("R"): "REDUCE",
    ord("b"): "BUILD",
    ord("P"): "PERSID",
    ord("Q"): "BINPERSID",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
}
"""Opcodes that name a class, call it, or request an object from the reader."""


class PickleRefusedError(InputError):
    """The file contains more than plain values, or exceeds the memory limit."""


class _Absent:
    """Placeholder in the memo for a record of a :class:`RecordRange`, which is built on first use."""


_ABSENT = _Absent()


class Memo:
    """Values by their number. Those of runs are built on first use, from the file's bytes ``data``."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._values: list[Any] = []
        self._runs: list[RecordRange] = []

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: Any) -> None:
        """Store ``value`` under the next number."""
        self._values.append(value)

    def replace(self, number: int, value: Any) -> None:
        """Replace the value with this number."""
        self._values[number] = value

    def add_run(self, run: RecordRange) -> None:
        """Reserve the numbers of a run's records."""
        run.begin(len(self._values))
        self._runs.append(run)
        self._values.extend([_ABSENT] * run.memo_count)

    def get(self, number: int) -> Any:
        """Return the value with this number.

        Raises:
            IndexError: there is none.
        """
        value = self._values[number]
        if value is _ABSENT:
            self._open(number)
            value = self._values[number]
        return value

    def _open(self, number: int) -> None:
        """Read the record that contains ``number``, value by value."""
        run = self._runs[bisect_right(self._runs, number, key=attrgetter("memo_start")) - 1]
        row = run.row_of(number)
        record = _OneRecord(self, int(run.table.memo_base[row]))
        reader = _Reader(self.data, None, record)
        reader.run(int(run.table.starts[row]), int(run.table.ends[row]))
        for place, value in enumerate(record.made):
            self._values[record.first + place] = value


class _OneRecord(Memo):
    """The memo while one record is read again: its own numbers are new, lower ones are those of the whole memo."""

    def __init__(self, whole: Memo, first: int) -> None:
        super().__init__(b"")
        self.first = first
        self.made = self._values
        self._whole = whole

    def __len__(self) -> int:
        return self.first + len(self.made)

    def get(self, number: int) -> Any:
        return self.made[number - self.first] if number >= self.first else self._whole.get(number)


def read_pickle(data: bytes, title: str) -> tuple[Any, Memo]:
    """Return the value of a pickle of protocol 2 to 5, and its memo.

    Lists can contain a :class:`RecordRange` in place of dictionaries; :func:`items_of` returns these one by one.

    Args:
        data: The whole file.
        title: Name of the file in errors.

    Raises:
        InputError: it is cut off, damaged, or contains other than plain values.
    """
    stripped = strip_frames(data)
    memo = Memo(stripped)
    reader = _Reader(stripped, RecordIndex(stripped), memo)
    try:
        value = reader.run(0, len(stripped))
    except PickleRefusedError as error:
        raise InputError(f"{title}: refused: {error.message}", hint=error.hint) from error
    except (IndexError, struct.error, UnicodeDecodeError, TypeError, ValueError) as error:
        place = min(reader.position, len(stripped))
        raise InputError(f"{title}: not a complete pickle: damaged or cut off near byte {place:,}") from error
    return value, memo


def strip_frames(data: bytes) -> bytes:
    """Return ``data`` without the frame marks (protocol 4 and later), so that similar records have equal bytes."""
    if data[:1] != b"\x80" or data[1:2] < b"\x04":
        return data
    pieces, place = [data[:2]], 2
    while data[place : place + 1] == b"\x95" and place + 9 <= len(data):
        end = place + 9 + int.from_bytes(data[place + 1 : place + 9], "little")
        if end > len(data):
            break
        pieces.append(memoryview(data)[place + 9 : end])  # type: ignore[arg-type]
        place = end
    pieces.append(memoryview(data)[place:])  # type: ignore[arg-type]
    return b"".join(pieces)


def items_of(values: Any, memo: Memo) -> Iterator[Any]:
    """Yield the items of a list one by one; records of runs as dictionaries."""
    for value in values:
        if isinstance(value, RecordRange):
            for row in range(value.first, value.last + 1):
                yield memo.get(int(value.table.memo_base[row]))
        else:
            yield value


class _Reader:
    """The pickle machine: a stack with marks, and the memo."""

    def __init__(self, data: bytes, records: RecordIndex | None, memo: Memo) -> None:
        self.data = data
        self.position = 0
        self._records = records
        self._memo = memo
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._left_bytes = COST_PER_BYTE * len(data) + COST_FLOOR_BYTES

    def run(self, start: int, end: int) -> Any:
        """Return the value on the stack at STOP, or at ``end``."""
        data, self.position = self.data, start
        while self.position < end:
            code = data[self.position]
            self.position += 1
            if code == 0x2E:
                break
            handler = _HANDLERS[code]
            if handler is None:
                self._refuse(code)
            handler(self)
        else:
            if end == len(data):
                raise IndexError("no STOP")
        if len(self._stack) != 1 or self._marks:
            raise ValueError("not one value")
        return self._stack.pop()

    def _refuse(self, code: int) -> NoReturn:
        place = self.position - 1
        if code in _CODE:
            raise PickleRefusedError(
                f"the pickle would run Python code ({_CODE[code]} at byte {place:,}), so it was not loaded",
                hint="Write the snapshot with torch.cuda.memory._dump_snapshot(): such a file has plain values only",
            )
        raise ValueError(f"opcode {code:#x}")

    def _spend(self, count_bytes: int) -> None:
        self._left_bytes -= count_bytes
        if self._left_bytes < 0:
            raise PickleRefusedError(
                f"loading it needs more than {COST_PER_BYTE} times its size in memory (byte {self.position:,})",
                hint="Write the file again: it is damaged, or made to exhaust memory",
            )

    def _push(self, value: Any, cost_bytes: int) -> None:
        self._spend(cost_bytes)
        if len(self._stack) >= MAX_STACK:
            raise PickleRefusedError(f"more than {MAX_STACK:,} values are nested or unfinished")
        self._stack.append(value)

    def _take(self, count: int) -> bytes:
        end = self.position + count
        piece = self.data[self.position : end]
        if len(piece) != count:
            raise IndexError("cut off")
        self.position = end
        return piece

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    # -- numbers and texts ----------------------------------------------------------------------------------------

    def protocol(self) -> None:
        if not 2 <= self._number(1) <= 5:
            raise ValueError("protocol")

    def frame(self) -> None:
        if self._number(8) > len(self.data) - self.position:
            raise IndexError("cut off")

    def constant(self, value: bool | None) -> None:
        self._push(value, 0)

    def integer(self, size: int, *, signed: bool = False) -> None:
        if size > MAX_LONG_BYTES:
            raise PickleRefusedError(f"a number is too large ({size} bytes, at byte {self.position:,})")
        self._push(int.from_bytes(self._take(size), "little", signed=signed), _NUMBER_BYTES if size > 1 else 0)

    def long_integer(self) -> None:
        self.integer(self._number(1), signed=True)

    def floating(self) -> None:
        self._push(struct.unpack(">d", self._take(8))[0], _NUMBER_BYTES)

    def text(self, size_bytes: int) -> None:
        piece = self._take(self._number(size_bytes))
        self._push(piece.decode("utf-8", "surrogatepass"), _TEXT_BYTES + 4 * len(piece))

    def short_bytes(self) -> None:
        piece = self._take(self._number(1))
        self._push(piece, _TEXT_BYTES + len(piece))

    # -- lists, tuples, dictionaries ------------------------------------------------------------------------------

    def mark(self) -> None:
        if len(self._marks) >= MAX_DEPTH:
            raise PickleRefusedError(f"nested more than {MAX_DEPTH:,} levels deep")
        self._marks.append(len(self._stack))

    def _above_mark(self) -> list[Any]:
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def empty_list(self) -> None:
        self._push([], _OPENED_BYTES)

    def empty_dict(self) -> None:
        run = self._records.run_at(self.position - 1) if self._records else None
        if run is not None and self._marks and self._marks[-1] and isinstance(self._stack[self._marks[-1] - 1], list):
            self._memo.add_run(run)
            self._push(run, _OPENED_BYTES)
            self.position = run.end
        else:
            self._push({}, _OPENED_BYTES)

    def tuple_of(self, count: int) -> None:
        if len(self._stack) < count + (self._marks[-1] if self._marks else 0):
            raise IndexError("no such values")
        start = len(self._stack) - count
        values = tuple(self._stack[start:])
        del self._stack[start:]
        self._push(values, _OPENED_BYTES)

    def tuple_above_mark(self) -> None:
        values = self._above_mark()
        self._push(tuple(values), _OPENED_BYTES + 8 * len(values))

    def _top(self, kind: type) -> Any:
        value = self._stack[-1]
        if type(value) is not kind:
            raise TypeError("wrong container")
        return value

    def append(self) -> None:
        value = self._stack.pop()
        self._top(list).append(value)
        self._spend(16)

    def appends(self) -> None:
        values = self._above_mark()
        self._top(list).extend(values)
        self._spend(8 * len(values))

    def setitem(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set(self._top(dict), key, value)

    def setitems(self) -> None:
        values = self._above_mark()
        target = self._top(dict)
        for place in range(0, len(values), 2):
            self._set(target, values[place], values[place + 1])

    def _set(self, target: dict[Any, Any], key: Any, value: Any) -> None:
        if type(key) is not str and not (type(key) is int and abs(key) < 1 << 53):
            raise TypeError("a key is not a string")
        target[key] = value
        self._spend(_ENTRY_BYTES)

    # -- memo -----------------------------------------------------------------------------------------------------

    def memoize(self) -> None:
        self._memo.add(self._stack[-1])
        self._spend(8)

    def put(self, size_bytes: int) -> None:
        """Store a value under its number. Picklers leave no gaps, so a number above the next one is rejected."""
        number, next_number = self._number(size_bytes), len(self._memo)
        if number > next_number:
            raise PickleRefusedError(f"memo index {number:,} where {next_number:,} is next (byte {self.position:,})")
        self._spend(8)
        if number == next_number:
            self._memo.add(self._stack[-1])
        else:
            self._memo.replace(number, self._stack[-1])

    def get(self, size_bytes: int) -> None:
        self._push(self._memo.get(self._number(size_bytes)), 0)


_OPCODES: dict[int, Callable[[_Reader], None]] = {
    0x80: _Reader.protocol,
    0x95: _Reader.frame,
    ord("N"): lambda reader: reader.constant(None),
    0x88: lambda reader: reader.constant(True),
    0x89: lambda reader: reader.constant(False),
    ord("K"): lambda reader: reader.integer(1),
    ord("M"): lambda reader: reader.integer(2),
    ord("J"): lambda reader: reader.integer(4, signed=True),
    0x8A: _Reader.long_integer,
    ord("G"): _Reader.floating,
    0x8C: lambda reader: reader.text(1),
    ord("X"): lambda reader: reader.text(4),
    0x8D: lambda reader: reader.text(8),
    ord("C"): _Reader.short_bytes,
    ord("("): _Reader.mark,
    ord("]"): _Reader.empty_list,
    ord("}"): _Reader.empty_dict,
    ord(")"): lambda reader: reader.tuple_of(0),
    0x85: lambda reader: reader.tuple_of(1),
    0x86: lambda reader: reader.tuple_of(2),
    0x87: lambda reader: reader.tuple_of(3),
    ord("t"): _Reader.tuple_above_mark,
    ord("a"): _Reader.append,
    ord("e"): _Reader.appends,
    ord("s"): _Reader.setitem,
    ord("u"): _Reader.setitems,
    0x94: _Reader.memoize,
    ord("q"): lambda reader: reader.put(1),
    ord("r"): lambda reader: reader.put(4),
    ord("h"): lambda reader: reader.get(1),
    ord("j"): lambda reader: reader.get(4),
}
_HANDLERS = [_OPCODES.get(code) for code in range(256)]
