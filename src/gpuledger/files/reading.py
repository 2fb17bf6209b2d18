"""How files that anybody may have written are opened and parsed: within limits, and with errors that name the file.

A damaged file makes a parser raise almost anything. Every reader parses inside :func:`reading`, which turns all of it
into an ``InputError``. Only parsing belongs inside: an error of the analysis of good data has to stay what it is.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from gpuledger.errors import GpuLedgerError, InputError

MIB = 1 << 20
TEXT_BYTES = 4 * MIB
"""Largest file of settings that is read: pyproject.toml, a budget."""
JSON_MEMORY_BYTES = 512 * MIB
"""Most memory that the values of one JSON text may take."""
MAX_DEPTH = 64
"""Deepest nesting of lists and objects in a JSON text."""
MAX_KEY_PARTS = 64
"""Most parts of a dotted key in TOML: the standard library's parser takes quadratic time and memory for them."""
SHOWN_CHARACTERS = 200
"""A parser's own message is cut at this length: it may repeat the file."""
_INTEGERS = range(-(1 << 63), 1 << 64)
_COST_BYTES = ((b"[", 72), (b"{", 240), (b":", 100), (b",", 64))
"""What a list, an object, an entry of an object and an entry of a list take in memory at most, beside their text."""
_KEY_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_LINE = re.compile(r"line (\d+)")
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_KEY_PART}\.[ \t]*+){{{MAX_KEY_PARTS}}}")


@contextmanager
def reading(place: object, what: str = "damaged", hint: str | None = None) -> Iterator[None]:
    """Turn whatever parsing raises into an error that names the file.

    Args:
        place: The file, and where in it, for the message.
        what: What the file is then, such as ``not JSON``; "" where the parser's own words say it.
        hint: What to do, for the message.

    Raises:
        InputError: anything was raised; one of gpuledger's own is passed on, with the file's name where it lacks it.
    """
    try:
        yield
    except GpuLedgerError as error:
        if type(error) is not InputError or str(place) in error.message:
            raise
        raise InputError(_words(place, what, error.message), hint=hint or error.hint) from error
    except OSError as error:
        raise InputError(f"{place}: {error.strerror or error}", hint=hint) from error
    except Exception as error:  # parsers of damaged files raise whatever they meet; -v shows the traceback
        raise InputError(_words(place, what, reason_of(error)), hint=hint) from error


def _words(*parts: object) -> str:
    return ": ".join(str(part) for part in parts if part)


def reason_of(error: BaseException) -> str:
    """Return what an exception of a parser says, in one line that is not too long."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, MemoryError):
        return "not enough memory to read it"
    if isinstance(error, KeyError):
        return f"{_cut(str(error))} is missing"
    words = _cut(" ".join(str(error).split()))
    return words if words and isinstance(error, ValueError) else f"{type(error).__name__}: {words}".rstrip(": ")


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def open_regular(path: Path) -> IO[bytes]:
    """Return a file opened for reading; a FIFO, device, socket or directory in its place is refused, not waited for.

    Raises:
        InputError: it is not a regular file.
        OSError: it cannot be opened.
    """
    check_regular(path)
    return os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")


def check_regular(path: Path) -> None:
    """Check that ``path`` is a regular file.

    Raises:
        InputError: it is something else.
        OSError: it is missing, or may not be looked at.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError(f"{path}: not a regular file")


def read_limited(path: Path, limit_bytes: int = TEXT_BYTES) -> bytes:
    """Return the content of a file that the user named; what is no regular file, such as a pipe, is read as well.

    Raises:
        InputError: it is larger than ``limit_bytes``.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise InputError(f"{path}: larger than the limit of {_size_text(limit_bytes)}")
    return content


def read_text(path: Path, limit_bytes: int = TEXT_BYTES, hint: str | None = None) -> str:
    """Return the text of a UTF-8 file that the user named.

    Raises:
        InputError: it cannot be read, is larger than ``limit_bytes``, or is not UTF-8.
    """
    with reading(path, hint=hint):
        content = read_limited(path, limit_bytes)
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text at byte {error.start:,}") from error


def read_json_file(path: Path) -> Any:
    """Return the value of a JSON file, as :func:`parse_json` does.

    Raises:
        InputError: it is not a regular file, or not JSON.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > JSON_MEMORY_BYTES:
            raise InputError(f"{path}: larger than the limit of {_size_text(JSON_MEMORY_BYTES)}")
        return parse_json(file.read(), path)


def parse_json(content: bytes, place: object, *, escape_surrogates: bool = True) -> Any:
    """Return the value of a JSON text; NaN becomes None.

    Args:
        content: UTF-8.
        place: What it is called in errors.
        escape_surrogates: Give strings that hold valid Unicode only, with lone surrogates escaped.

    Raises:
        InputError: it is not JSON, nested too deeply, would take too much memory, or holds a number of no column.
    """
    needed_bytes = 4 * len(content) + sum(cost * content.count(mark) for mark, cost in _COST_BYTES)
    if needed_bytes > max(JSON_MEMORY_BYTES, 8 * len(content)):
        raise InputError(f"{place}: reading it needs more than {_size_text(JSON_MEMORY_BYTES)} of memory")
    with reading(place, "not JSON"):
        text = content.decode("utf-8", "surrogatepass")
        value = json.loads(text, parse_int=_integer, parse_float=_real, parse_constant=lambda _: None)
        _check_depth(value)
        may_hold_surrogates = b"\\ud" in content or b"\\uD" in content or b"\xed" in content
        return _with_valid_text(value) if escape_surrogates and may_hold_surrogates else value


def storable(text: str) -> str:
    """Return ``text`` with lone surrogates escaped: files and columns hold valid Unicode only."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _with_valid_text(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list):
        return [_with_valid_text(one) for one in value]
    if isinstance(value, dict):
        return {storable(name): _with_valid_text(one) for name, one in value.items()}
    return value


def _integer(text: str) -> int:
    value = int(text) if len(text) <= 20 else None
    if value is None or value not in _INTEGERS:
        raise ValueError(f"the integer {_cut(text[:20])}… of {len(text):,} digits is too large")
    return value


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {_cut(text[:20])} is too large")
    return value


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        inner = (entry for one in level for entry in (one.values() if isinstance(one, dict) else one))
        level = [entry for entry in inner if isinstance(entry, dict | list)] if level else []
        if not level:
            return
    raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


class NotTomlError(ValueError):
    """A text is not TOML: ``reason`` says why, ``line`` where."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(f"{reason} (line {line})")
        self.reason = reason
        self.line = line


def load_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        NotTomlError: it is not TOML, nested too deeply, or has a key of very many parts.
    """
    import tomllib

    last = text.count("\n") + 1
    long = _LONG_KEY.search(text)
    if long:
        raise NotTomlError(f"a key of more than {MAX_KEY_PARTS} parts", text.count("\n", 0, long.start()) + 1)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, _, where = str(error).partition(" (at ")
        found = _LINE.match(where)
        raise NotTomlError(_cut(reason), int(found[1]) if found else last) from error
    except (ValueError, RecursionError) as error:  # an integer of very many digits, very deep nesting
        raise NotTomlError(reason_of(error), last) from error


def parse_toml(text: str, place: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        InputError: it is not TOML; it names the place and the line.
    """
    with reading(place, "not TOML"):
        return load_toml(text)


def _size_text(size_bytes: int) -> str:
    return f"{size_bytes >> 20:,} MiB" if size_bytes >= MIB else f"{size_bytes >> 10:,} KiB"
