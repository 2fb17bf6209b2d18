"""Lines of a text file, which can be incomplete: CRLF, NUL bytes, UTF-16, a cut-off last line, very long lines."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_LINE_CHARACTERS = 65_536
SHOWN_CHARACTERS = 60
_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


@dataclass(frozen=True)
class TextLine:
    """One line without its end. ``ended`` is False if the file stops in it; ``had_nul``: NULs were removed."""

    number: int
    text: str
    ended: bool
    had_nul: bool


def read_lines(path: Path) -> Iterator[TextLine]:
    """Yield the lines of a file, in bounded memory; a longer line is split into pieces.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as raw:
        encoding = _encoding(raw.read(4))
    with path.open(encoding=encoding, errors="replace", newline=None) as file:
        number = 0
        while piece := file.readline(MAX_LINE_CHARACTERS):
            number += 1
            text = piece.rstrip("\n").replace("\0", "")
            yield TextLine(number, text, piece.endswith("\n"), "\0" in piece)


def decoded(head: bytes) -> str:
    """Return the start of a file as text, without NULs."""
    return head.decode(_encoding(head), "replace").replace("\0", "")


def shown(text: str) -> str:
    """Return a line for a message: quoted, shortened, and with control characters escaped."""
    cut = text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
    return repr(cut)


def _encoding(head: bytes) -> str:
    return next((name for bom, name in _BOMS.items() if head.startswith(bom)), "utf-8")
