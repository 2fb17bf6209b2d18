"""Make the table of positions of generated code short, which torch searches for the line of each allocation."""

from __future__ import annotations

import opcode
from collections.abc import Iterator
from types import CodeType

_RAISE_NOTHING = frozenset(
    opcode.opmap[name]
    for name in (
        *("BUILD_TUPLE", "COPY", "KW_NAMES", "LOAD_CONST", "LOAD_FAST", "LOAD_FAST_LOAD_FAST", "LOAD_SMALL_INT"),
        *("LOAD_FAST_BORROW", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_GLOBAL", "NOP", "POP_TOP", "PUSH_NULL"),
        *("RESUME", "STORE_FAST", "SWAP"),
    )
    if name in opcode.opmap
)
"""Instructions at which no traceback of generated code points."""
_CACHE = opcode.opmap["CACHE"]
_MOST_UNITS, _MOST_LINES, _MOST_COLUMN = 8, 2, 127
"""Limits of one entry: units of code; and of the short form: lines to the entry before, and the last column."""
_ONE_LINE, _WITHOUT_COLUMNS, _LONG, _WITHOUT_LINE = 10, 13, 14, 15

Position = tuple[int | None, int | None, int | None, int | None]


def with_short_positions(code: CodeType) -> CodeType:
    """Return the code with a shorter table of positions: lines are those of ``code``, columns where it can raise.

    torch finds the line of each recorded allocation by a search from the beginning of this table. Observed code has
    many more instructions, so that this would be most of the time for which a recording pauses the program.

    Source: Objects/locations.md of CPython, the same for 3.11 to 3.14.
    """
    entries: list[tuple[Position, int]] = []
    is_kept = False
    for instruction, (line, end_line, column, end_column) in zip(code.co_code[::2], code.co_positions(), strict=True):
        if instruction != _CACHE:
            is_kept = instruction not in _RAISE_NOTHING
        has_columns = is_kept and None not in (end_line, column, end_column) and (column, end_column) != (0, 0)
        position = (line, end_line, column, end_column) if has_columns else (line, None, None, None)
        if entries and entries[-1][0] == position and entries[-1][1] < _MOST_UNITS:
            entries[-1] = position, entries[-1][1] + 1
        else:
            entries.append((position, 1))
    table = bytearray()
    before = code.co_firstlineno
    for position, units in entries:
        table += _entry(position, units, before)
        before = before if position[0] is None else position[0]
    return code.replace(co_linetable=bytes(table))


def _entry(position: Position, units: int, before: int) -> bytes:
    """Return an entry of the table, for ``units`` of code. ``before`` is the line of the entry before."""
    line, end_line, column, end_column = position

    def head(kind: int) -> int:
        return 0x80 | kind << 3 | units - 1

    if line is None:
        return bytes([head(_WITHOUT_LINE)])
    change = line - before
    signed = change << 1 if change >= 0 else -change << 1 | 1
    if end_line is None or column is None or end_column is None:
        return bytes([head(_WITHOUT_COLUMNS), *_varint(signed)])
    if 0 <= change <= _MOST_LINES and end_line == line and max(column, end_column) <= _MOST_COLUMN:
        return bytes([head(_ONE_LINE + change), column, end_column])
    numbers = (signed, end_line - line, column + 1, end_column + 1)
    return bytes([head(_LONG), *(byte for number in numbers for byte in _varint(number))])


def _varint(number: int) -> Iterator[int]:
    """Yield the bytes of a number: six bits each, the lowest first, and 64 if more follow."""
    while number > 63:
        yield 64 | number & 63
        number >>= 6
    yield number
