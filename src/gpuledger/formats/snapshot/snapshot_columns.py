"""Columns of a memory snapshot's lists of dictionaries, read as runs or one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.errors import InputError
from gpuledger.formats.snapshot.pickle_reader import Memo
from gpuledger.formats.snapshot.pickle_records import FieldKind, RecordField, RecordRange, RecordTable

I64 = NDArray[np.int64]
Frame = tuple[str, int, str]

MAX_FRAMES = 256
"""Maximum number of frames stored per stack, from the innermost on."""
MAX_TEXT = 400
"""Maximum number of characters stored of a file or function name, from its end."""
_FEWEST_ROWS = 50_000
_BYTES_PER_ROW = 24
_TEXT = int(FieldKind.TEXT)


class SnapshotColumns:
    """Reads columns. Texts and stacks are numbered; a number is a position in ``texts`` or ``stacks``."""

    def __init__(self, data: bytes, memo: Memo) -> None:
        self.texts: list[str] = []
        self.stacks: list[tuple[Frame, ...]] = []
        self.stacks_left_out = 0
        self._data = data
        self._memo = memo
        self._text_number: dict[str, int] = {}
        self._text_of_piece: dict[bytes, int] = {}
        self._stack_number: dict[tuple[int, ...], int] = {}
        self._stack_of_piece: dict[bytes, int] = {}
        self._rows_left = _FEWEST_ROWS + len(data) // _BYTES_PER_ROW
        self._frames: list[Frame] = []
        self._frame_number: dict[Frame, int] = {}
        self._frame_of_memo: dict[int, int] = {}
        self._stack_of_memo = np.full(len(memo), -1, dtype=np.int32)

    def release(self) -> None:
        """Release the file and the values that were read from it; texts and stacks stay."""
        self._data, self._memo = b"", Memo(b"")
        self._stack_of_piece.clear()
        self._text_of_piece.clear()
        self._stack_number.clear()

    def numbers(self, items: list[Any], key: str, missing: int = 0) -> I64:
        """Return a number of every item as int64[n]; ``missing`` for items without one.

        Raises:
            InputError: an item has something else, such as NaN.
        """
        found = np.full(count_of(items), missing, dtype=np.int64)
        for low, high, item in _pieces(items):
            if isinstance(item, RecordRange):
                column = self._column(item.table, key)
                if column is not None:
                    rows = slice(item.first, item.last + 1)
                    is_number = column.kind[rows] == FieldKind.NUMBER
                    if not (is_number | np.isin(column.kind[rows], (FieldKind.MISSING, FieldKind.NONE))).all():
                        raise InputError(f"damaged: {key} is not a whole number")
                    found[low:high] = np.where(is_number, column.value[rows], missing)
            elif (value := item.get(key)) is not None:
                if not isinstance(value, int):
                    shown = repr(value) if isinstance(value, float) else f"a {type(value).__name__}"
                    raise InputError(f"damaged: {key} is {shown}, not a whole number")
                found[low] = _signed(value)
        return found

    def labels(self, items: list[Any], key: str) -> I64:
        """Return a text of every item as its number in ``texts``; -1 if it has none. A dictionary counts as JSON."""
        return self._numbered(items, key, self._texts_at, self._text_of, np.full(len(self._memo), -1, dtype=np.int32))

    def stack_numbers(self, items: list[Any], key: str = "frames") -> I64:
        """Return the stack of every item as its number in ``stacks``; -1 if it has none."""
        return self._numbered(items, key, self._stacks_at, self._stack_of, self._stack_of_memo)

    def _column(self, table: RecordTable, key: str) -> RecordField | None:
        return next((column for number, column in table.columns.items() if self._memo.get(number) == key), None)

    def _numbered(
        self,
        items: list[Any],
        key: str,
        at: Callable[[RecordField, I64], list[int]],
        of: Callable[[Any], int],
        known: NDArray[np.int32],
    ) -> I64:
        """Return numbers of inline values (``at`` some rows), and of values and references to them (``of``)."""
        found = np.full(count_of(items), -1, dtype=np.int64)
        for low, high, item in _pieces(items):
            if isinstance(item, RecordRange):
                column = self._column(item.table, key)
                if column is not None:
                    found[low:high] = self._of_run(item, column, at, of, known)
            else:
                found[low] = of(item.get(key))
        return found

    def _of_run(
        self,
        run: RecordRange,
        column: RecordField,
        at: Callable[[RecordField, I64], list[int]],
        of: Callable[[Any], int],
        known: NDArray[np.int32],
    ) -> I64:
        rows = np.arange(run.first, run.last + 1)
        found = np.full(rows.size, -1, dtype=np.int64)
        kinds = column.kind[rows]
        inline = np.flatnonzero((kinds == FieldKind.TEXT) | (kinds == FieldKind.LIST))
        found[inline] = at(column, rows[inline])
        known[run.table.memo_base[rows[inline]] + column.memo_offset[rows[inline]]] = found[inline]
        referring = np.flatnonzero(kinds == FieldKind.REFERENCE)
        numbers = column.value[rows[referring]]
        if numbers.size and int(numbers.max()) >= known.size:
            raise IndexError("no such memo number")
        for number in np.unique(numbers[known[numbers] < 0]).tolist():
            known[number] = of(self._memo.get(number))
        found[referring] = known[numbers]
        return found

    # -- texts ----------------------------------------------------------------------------------------------------

    def _texts_at(self, column: RecordField, rows: I64) -> list[int]:
        data, known = self._data, self._text_of_piece
        numbers = []
        for place, kind in zip(column.value[rows].tolist(), column.kind[rows].tolist(), strict=True):
            piece = data[place + 2 : place + 2 + data[place + 1]] if kind == _TEXT else b""
            number = known.get(piece)
            if number is None:
                number = known[piece] = self._text_of(piece.decode("utf-8", "surrogatepass"))
            numbers.append(number)
        return numbers

    def _text_of(self, value: Any) -> int:
        if type(value) is dict:
            value = json.dumps({str(key): one for key, one in value.items() if type(one) in (str, int)})
        if type(value) is not str:
            return -1
        number = self._text_number.setdefault(value, len(self.texts))
        if number == len(self.texts):
            self.texts.append(value)
        return number

    # -- stacks ---------------------------------------------------------------------------------------------------

    def _stacks_at(self, column: RecordField, rows: I64) -> list[int]:
        if column.end is None:
            return [-1] * rows.size
        data, known = self._data, self._stack_of_piece
        numbers = []
        for place, end in zip(column.value[rows].tolist(), column.end[rows].tolist(), strict=True):
            piece = data[place + 2 : end]
            number = known.get(piece)
            if number is None:
                frames = tuple(self._frame_by_memo(number) for number in _fetched(piece)[:MAX_FRAMES])
                number = known[piece] = self._intern(frames)
            numbers.append(number)
        return numbers

    def _stack_of(self, value: Any) -> int:
        if type(value) is not list:
            return -1
        frames: list[int] = []
        for _, _, item in _pieces(value[:MAX_FRAMES]):
            if isinstance(item, RecordRange):
                bases = item.table.memo_base[item.first : item.last + 1].tolist()
                frames += [self._frame_by_memo(number) for number in bases]
            else:
                frames.append(self._frame_of(item))
        return self._intern(tuple(frames))

    def _intern(self, frames: tuple[int, ...]) -> int:
        if not frames:
            return -1
        frames = frames[:MAX_FRAMES]
        number = self._stack_number.get(frames)
        if number is None:
            if self._rows_left < len(frames):
                self.stacks_left_out += 1
                return -1
            self._rows_left -= len(frames)
            number = self._stack_number[frames] = len(self.stacks)
            self.stacks.append(tuple(self._frames[frame] for frame in frames))
        return number

    def _frame_by_memo(self, number: int) -> int:
        known = self._frame_of_memo.get(number)
        if known is None:
            known = self._frame_of_memo[number] = self._frame_of(self._memo.get(number))
        return known

    def _frame_of(self, value: Any) -> int:
        if type(value) is not dict:
            raise InputError("a stack has an entry that is not a frame")
        file, line, name = (value.get(key) for key in ("filename", "line", "name"))
        frame = (
            file[-MAX_TEXT:] if type(file) is str else "?",
            line if type(line) is int and 0 <= line < 1 << 31 else 0,
            name[-MAX_TEXT:] if type(name) is str else "?",
        )
        number = self._frame_number.setdefault(frame, len(self._frames))
        if number == len(self._frames):
            self._frames.append(frame)
        return number


def count_of(items: list[Any]) -> int:
    """Return the number of dictionaries in a list.

    Raises:
        InputError: it is not a list, or contains other values.
    """
    if type(items) is not list or not all(isinstance(item, (RecordRange, dict)) for item in items):
        raise InputError("expected a list of dictionaries")
    return sum(item.count if isinstance(item, RecordRange) else 1 for item in items)


def _pieces(items: list[Any]) -> Iterator[tuple[int, int, RecordRange | dict[str, Any]]]:
    """Yield the first position, the position after the last, and the run or dictionary between them."""
    low = 0
    for item in items:
        high = low + (item.count if isinstance(item, RecordRange) else 1)
        yield low, high, item
        low = high


def _fetched(piece: bytes) -> list[int]:
    """Return the memo numbers that a list's opcodes fetch."""
    numbers, place = [], 0
    while place < len(piece):
        code = piece[place]
        if code == ord("h"):
            numbers.append(piece[place + 1])
            place += 2
        elif code == ord("j"):
            numbers.append(int.from_bytes(piece[place + 1 : place + 5], "little"))
            place += 5
        else:
            place += 1
    return numbers


def _signed(number: int) -> int:
    """Return an unsigned number of up to 64 bits as a signed one. Addresses and streams are written either way.

    Raises:
        InputError: it has more bits.
    """
    if not -(1 << 63) <= number < 1 << 64:
        raise InputError(f"a number needs {number.bit_length()} bits, the limit is 64")
    return number - (1 << 64) if number >= 1 << 63 else number
