"""Read JSON token by token, in bounded memory: no objects are built."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpuledger.errors import InputError
from gpuledger.formats.text_lines import decoded

PIECE = 1 << 20
MAX_TOKEN = 4 << 20
MAX_DIGITS = 40
_TOKEN = re.compile(r'\s*+(?:(?P<mark>[{}\[\],:])|"(?P<text>(?:[^"\\]++|\\.)*+)"|(?P<word>[\w.+-]++))', re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class Token(NamedTuple):
    """``kind`` is one of ``{}[],:``, ``text``, ``number`` or ``word`` (true, false, null)."""

    kind: str
    text: str = ""
    number: float = 0.0


def tokens(path: Path) -> Iterator[Token]:
    """Yield the tokens of a JSON file.

    Raises:
        InputError: it is not valid JSON.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        utf16 = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
    with path.open(encoding="utf-16" if utf16 else "utf-8-sig", errors="replace") as file:
        rest, position = "", 0
        while True:
            found = _TOKEN.match(rest, position)
            if found is None or found.end() == len(rest):
                more = file.read(PIECE)
                if more:
                    rest, position = rest[position:] + more, 0
                    if len(rest) > MAX_TOKEN + PIECE:
                        raise InputError(f"{path}: not JSON: a string is longer than {MAX_TOKEN:,} characters")
                    continue
                if found is None:
                    left = rest[position : position + 20].strip()
                    if left:
                        raise InputError(f"{path}: {'cut off' if left[0] == chr(34) else 'not JSON'} near {left!r}")
                    return
            position = found.end()
            yield _token(found, path)


def _token(found: re.Match[str], path: Path) -> Token:
    mark, text, word = found["mark"], found["text"], found["word"]
    if mark:
        return Token(mark)
    if text is not None:
        return Token("text", _ESCAPE.sub(_unescaped, text) if "\\" in text else text)
    if word in ("true", "false", "null"):
        return Token("word", word)
    try:
        if len(word) > MAX_DIGITS:
            raise ValueError
        return Token("number", word, float(word))
    except ValueError:
        raise InputError(f"{path}: not JSON near {word[:20]!r}") from None


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if code[0] == "u" and len(code) == 5 else _ESCAPES.get(code, code)


def begins_with_object(head: bytes) -> bool:
    """Return whether a file starts with a JSON object."""
    return decoded(head[:64]).lstrip("\ufeff \t\r\n").startswith("{")
