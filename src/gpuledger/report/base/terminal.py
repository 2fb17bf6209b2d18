"""Text for a terminal: its width, colours and characters, and tables that fit."""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, TextIO

from rich.cells import cell_len
from rich.color import Color, ColorSystem

from gpuledger.units import DASH

COMFORTABLE_CELLS = 28
"""A text is shortened to this width before a column is left out."""
SMALLEST_CELLS = 14
"""Least width of a text, enough for ``… 12,345 more``."""
SMALLEST_BAR_CELLS = 8
BAR_CELLS = 24
MISSING = DASH
"""What stands in place of an unknown value."""
EIGHTHS = " ▏▎▍▌▋▊▉█"
ASCII_FOR = str.maketrans({"–": "-", "…": "...", "·": "-", "×": "x", "µ": "u", "—": "-", "→": "->", "°": " "})
HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
Style = NewType("Style", str)
"""An escape sequence that begins a style, or "" for none."""
BOLD, DIM, PLAIN, RESET = Style("\x1b[1m"), Style("\x1b[2m"), Style(""), "\x1b[0m"


def printable(text: str) -> str:
    r"""Return ``text`` with control and invisible characters escaped: ``\x1b``, ``\n``, ``\u202e``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if unicodedata.category(character) in HIDDEN_CATEGORIES
        else character
        for character in text
    )


@dataclass(frozen=True)
class Terminal:
    """A destination of text. If ``width_cells`` is None (a file or a pipe), nothing is shortened."""

    width_cells: int | None = None
    encoding: str = "utf-8"
    colors: ColorSystem | None = None

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str] | None = None) -> Terminal:
        """Return the terminal of ``stream``. NO_COLOR, TERM, COLORTERM and COLUMNS are respected."""
        environ = os.environ if environ is None else environ
        encoding = getattr(stream, "encoding", None) or "utf-8"
        width = int(environ["COLUMNS"]) if environ.get("COLUMNS", "").isdecimal() else 0
        if not stream.isatty():
            return cls(width or None, encoding)
        return cls(width or shutil.get_terminal_size().columns, encoding, _color_system(environ))

    @property
    def unicode(self) -> bool:
        """Return whether bars and dashes can be drawn."""
        try:
            (EIGHTHS + "–…·×µ").encode(self.encoding)
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    def text(self, text: str) -> str:
        """Return ``text`` with control characters, and those missing from the encoding, escaped or replaced."""
        safe = printable(text)
        if not self.unicode:
            safe = safe.translate(ASCII_FOR)
        try:
            return safe.encode(self.encoding, "backslashreplace").decode(self.encoding)
        except LookupError:
            return safe.encode("ascii", "backslashreplace").decode("ascii")

    def painted(self, text: str, color: str) -> str:
        """Return ``text`` in ``color`` (``#rrggbb``) if the terminal has colours."""
        if self.colors is None or not text:
            return text
        codes = Color.parse(color).downgrade(self.colors).get_ansi_codes()
        return f"\x1b[{';'.join(codes)}m{text}{RESET}"

    def styled(self, text: str, style: Style) -> str:
        """Return ``text`` in ``style`` if the terminal has colours."""
        return f"{style}{text}{RESET}" if style and text and self.colors is not None else text

    def shortened(self, text: str, cells: int) -> str:
        """Return ``text`` cut in its middle to at most ``cells`` columns."""
        if cell_len(text) <= cells:
            return text
        mark = "…" if self.unicode else "..."
        room = max(cells - len(mark), 0)
        head, tail = _fitting(text, room // 3), _fitting(text[::-1], room - room // 3)[::-1]
        return (head + mark + tail)[: max(cells, 0)] if room == 0 else head + mark + tail

    def wrapped(self, parts: Sequence[str], indent: int = 0, gap: str = "   ") -> list[str]:
        """Return ``parts`` joined by ``gap`` on as few lines as possible. Parts are not cut or split."""
        lines: list[str] = []
        for part in (part for part in parts if part):
            longer = f"{lines[-1]}{gap}{part}" if lines else part
            if lines and self.width_cells is not None and cell_len(longer) > self.width_cells:
                lines.append(" " * indent + part)
            else:
                lines[-1:] = [longer]
        return lines

    def paragraph(self, text: str, first: str = "", indent: int = 0) -> list[str]:
        """Return ``text`` after ``first``, wrapped at spaces, with the following lines indented."""
        words = self.text(text).split(" ")
        return self.wrapped([first + words[0], *words[1:]], indent, " ")


def _color_system(environ: Mapping[str, str]) -> ColorSystem | None:
    if environ.get("NO_COLOR") or environ.get("TERM", "") in ("", "dumb"):
        return None
    if environ.get("COLORTERM", "") in ("truecolor", "24bit"):
        return ColorSystem.TRUECOLOR
    return ColorSystem.EIGHT_BIT if "256color" in environ["TERM"] else ColorSystem.STANDARD


def _fitting(text: str, cells: int) -> str:
    """Return the longest beginning of ``text`` that fits into ``cells`` columns."""
    taken = 0
    for position, character in enumerate(text):
        taken += cell_len(character)
        if taken > cells:
            return text[:position]
    return text


@dataclass(frozen=True)
class Bar:
    """A bar of coloured pieces: ``(share of the column's width, color)``."""

    pieces: tuple[tuple[float, str], ...]

    def drawn(self, terminal: Terminal, cells: int) -> str:
        """Return the bar on ``cells`` columns, rounded to eighths of a column at its end."""
        if not terminal.unicode:
            return "#" * round(sum(share for share, _ in self.pieces) * cells)
        text, end, drawn = "", 0.0, 0
        for number, (share, color) in enumerate(self.pieces):
            end += share * cells
            whole = int(end + 1e-9) if number + 1 == len(self.pieces) else round(end)
            piece = "█" * max(whole - drawn, 0)
            drawn = max(drawn, whole)
            if number + 1 == len(self.pieces) and drawn < cells:
                piece += EIGHTHS[int(max(end - drawn, 0.0) * 8)].strip()
            text += terminal.painted(piece, color)
        return text


@dataclass(frozen=True)
class Cell:
    """A text with a style (an escape sequence) or a color (``#rrggbb``)."""

    text: str
    style: Style = PLAIN
    color: str = ""


@dataclass(frozen=True)
class TextColumn:
    """Layout of a column.

    ``shrinks``: texts can be cut in the middle. ``bar``: the column has bars, which shrink, too. ``optional``: on a
    narrow terminal, the column with the highest number is left out first; 0 is never left out. An optional column
    without any value is always left out.
    """

    title: str = ""
    right: bool = False
    shrinks: bool = False
    bar: bool = False
    optional: int = 0


@dataclass(frozen=True)
class TextTable:
    """Rows under columns. A cell is a text, a :class:`Cell` or, in a column for bars, a :class:`Bar`."""

    columns: tuple[TextColumn, ...]
    rows: tuple[tuple[str | Cell | Bar, ...], ...]

    def fits(self, terminal: Terminal) -> bool:
        """Return whether the table fits without shortening."""
        natural = self._natural_widths(self._safe_rows(terminal), terminal)
        return terminal.width_cells is None or _total_cells(natural) <= terminal.width_cells

    def lines(self, terminal: Terminal) -> list[str]:
        """Return the table's lines, no wider than the terminal unless numbers need more."""
        safe = self._safe_rows(terminal)
        natural = self._natural_widths(safe, terminal)
        empty = [
            number for number, column in enumerate(self.columns) if column.optional and _is_empty(number, self.rows)
        ]
        widths = self._fit(natural, terminal.width_cells, empty)
        lines = []
        if any(column.title for column in self.columns):
            titles = [Cell(terminal.text(column.title), DIM) for column in self.columns]
            lines.append(self._line(titles, widths, terminal))
        return lines + [self._line(row, widths, terminal) for row in safe]

    def _safe_rows(self, terminal: Terminal) -> list[list[Cell | Bar]]:
        return [[self._safe(cell, terminal) for cell in row] for row in self.rows]

    def _natural_widths(self, rows: list[list[Cell | Bar]], terminal: Terminal) -> list[int]:
        return [self._natural_cells(number, rows, terminal) for number in range(len(self.columns))]

    @staticmethod
    def _safe(cell: str | Cell | Bar, terminal: Terminal) -> Cell | Bar:
        if isinstance(cell, Bar):
            return cell
        cell = Cell(cell) if isinstance(cell, str) else cell
        indent = len(cell.text) - len(cell.text.lstrip(" "))
        return Cell(" " * indent + terminal.text(cell.text[indent:]), cell.style, cell.color)

    def _natural_cells(self, number: int, rows: list[list[Cell | Bar]], terminal: Terminal) -> int:
        title = cell_len(terminal.text(self.columns[number].title))
        cells = (row[number] for row in rows)
        return max([title, *(BAR_CELLS if isinstance(cell, Bar) else cell_len(cell.text) for cell in cells)])

    def _fit(self, natural: list[int], room: int | None, empty: Sequence[int]) -> list[int | None]:
        """Return each column's width; None if it is left out."""
        widths = [None if number in empty else width for number, width in enumerate(natural)]
        if room is None:
            return widths
        optional = [number for number, column in enumerate(self.columns) if column.optional]
        self._shrink(widths, room, COMFORTABLE_CELLS)
        for number in sorted(optional, key=lambda number: -self.columns[number].optional):
            if _total_cells(widths) <= room:
                break
            widths[number] = None
        self._shrink(widths, room, SMALLEST_CELLS)
        self._widen(widths, natural, room)
        return widths

    def _shrink(self, widths: list[int | None], room: int, least: int) -> None:
        for number, column in enumerate(self.columns):
            width = widths[number]
            if (column.shrinks or column.bar) and width is not None:
                excess = max(_total_cells(widths) - room, 0)
                widths[number] = max(min(width, SMALLEST_BAR_CELLS if column.bar else least), width - excess)

    def _widen(self, widths: list[int | None], natural: list[int], room: int) -> None:
        for number, column in enumerate(self.columns):
            width = widths[number]
            if (column.shrinks or column.bar) and width is not None:
                widths[number] = min(natural[number], width + max(room - _total_cells(widths), 0))

    def _line(self, row: Sequence[Cell | Bar], widths: Sequence[int | None], terminal: Terminal) -> str:
        pieces = []
        for cell, column, width in zip(row, self.columns, widths, strict=True):
            if width is None:
                continue
            if isinstance(cell, Bar):
                pieces.append(cell.drawn(terminal, width))
                continue
            text = terminal.shortened(cell.text, width) if column.shrinks else cell.text
            space = " " * max(width - cell_len(text), 0)
            shown = terminal.painted(text, cell.color) if cell.color else terminal.styled(text, cell.style)
            pieces.append(space + shown if column.right else shown + space)
        return "  ".join(pieces).rstrip()


def _is_empty(number: int, rows: Sequence[Sequence[str | Cell | Bar]]) -> bool:
    """Return whether a column has rows, and no value in any."""
    texts = [cell.text if isinstance(cell, Cell) else cell for cell in (row[number] for row in rows)]
    return bool(texts) and all(isinstance(text, str) and text.strip() in ("", MISSING) for text in texts)


def _total_cells(widths: Sequence[int] | Sequence[int | None]) -> int:
    shown = [width for width in widths if width is not None]
    return sum(shown) + 2 * (len(shown) - 1)
