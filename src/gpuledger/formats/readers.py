"""The formats that gpuledger reads, told apart by content. Files are untrusted: they are parsed, never executed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger.errors import InputError, UsageError
from gpuledger.model.imported import ImportedRun

HEAD_BYTES = 65_536


@dataclass(frozen=True)
class Format:
    """One older format. ``place`` is its module below :mod:`gpuledger.formats`, imported when it is asked.

    The module has two functions. ``looks_like(path, head)`` says whether a file (its first :data:`HEAD_BYTES` bytes) or
    a folder (``head`` is empty) is of this format. ``read_files(paths, name, options)`` returns an
    :class:`~gpuledger.model.imported.ImportedRun`, or raises ``InputError`` where nothing at all could be read.
    ``options`` are those of ``gpuledger import``; each reader takes those it names and refuses others.
    """

    place: str
    summary: str
    options: tuple[str, ...] = ()


FORMATS: dict[str, Format] = {}
"""Formats in the order in which content is tried: the ones that are certain first."""


def read_files(format_name: str, paths: Sequence[Path], name: str, options: Mapping[str, Any]) -> ImportedRun:
    """Return what the files hold, read as the format of this name.

    Raises:
        UsageError: no such format, or an option that it does not take.
        InputError: nothing could be read.
    """
    if format_name not in FORMATS:
        raise UsageError(f"no format {format_name!r}", hint=f"one of {', '.join(FORMATS)}")
    refused = sorted(set(options) - set(FORMATS[format_name].options))
    if refused:
        raise UsageError(f"import {format_name}: takes no --{refused[0].replace('_', '-')}")
    imported: ImportedRun = _module(format_name).read_files(tuple(paths), name, dict(options))
    return imported


def find_format(path: Path) -> str | None:
    """Return the name of the format that ``path``, a file or a folder, looks like; None where it is none.

    Raises:
        InputError: it is missing or cannot be opened.
    """
    try:
        head = b"" if path.is_dir() else _head(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    return next((name for name in FORMATS if _module(name).looks_like(path, head)), None)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def _module(format_name: str) -> Any:
    return importlib.import_module(f"gpuledger.formats.{FORMATS[format_name].place}")
