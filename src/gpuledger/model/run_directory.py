"""Names and paths of a run's files, as far as a recorded process needs them. Defines no class and loads no library."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, TypeGuard

from gpuledger.errors import InputError, UsageError
from gpuledger.files.reading import read_json_file, reading
from gpuledger.files.writing import write_whole
from gpuledger.model.schema.tables import SCHEMA_VERSION

SUFFIX = ".ledger"
MANIFEST = "manifest.json"
RANK_PREFIX = "rank-"
SAMPLE_JOURNALS = "samples/journal"
"""Directory of the launcher's GPU samples, below the run's directory."""
LISTENING, ASKED = "listening", "asked"
"""Files below the run's directory: the process accepts requests for a memory recording; a request is pending."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NOT_UNICODE = re.compile("[\ud800-\udfff]")


def is_url(text: object) -> TypeGuard[str]:
    """Return whether a text is a URL, such as ``s3://bucket/train``. A :class:`~pathlib.Path` is none."""
    return isinstance(text, str) and _URL.match(text) is not None


def choose_directory(out: str | None, *, force: bool, stem: str) -> Path:
    """Return the directory of a new recording. Creates and removes nothing.

    Without ``out``, it is the first free name of ``stem.ledger``, ``stem-2.ledger``, …, with ``_`` for characters that
    are not Unicode. If ``out`` is a symbolic link, the run that it points to is replaced, and the link is kept.

    Raises:
        UsageError: ``out`` exists and ``force`` is False, or it is not a run and must not be removed, or it is a URL or
            not valid Unicode.
    """
    if out is None:
        stem = _NOT_UNICODE.sub("_", stem)
        number = 1
        while True:
            path = Path(f"{stem}{SUFFIX}" if number == 1 else f"{stem}-{number}{SUFFIX}")
            if not os.path.lexists(path):
                return path
            number += 1
    if is_url(out):
        raise UsageError(
            f"{out}: a URL, but this command writes a local directory",
            hint=f"Give --out a name, then upload the run with: gpuledger merge NAME.ledger --out {out}",
        )
    if _NOT_UNICODE.search(out):
        raise UsageError(f"{out!r}: a run's name must be valid UTF-8", hint="Choose another name with --out")
    path = Path(out if out.endswith(SUFFIX) else out + SUFFIX)
    if path.is_symlink():
        path = Path(os.path.realpath(path))
        if path.is_symlink():
            raise UsageError(f"{out}: a symbolic link that points to itself", hint="Choose another name with --out")
    if path.exists():
        if not force:
            raise UsageError(
                f"{path}: already exists", hint="Choose another name with --out, or overwrite it with --force"
            )
        if not (path / MANIFEST).is_file():
            raise UsageError(
                f"{path}: already exists and is not a run, so it is not overwritten",
                hint="Choose another name with --out",
            )
    return path


def rank_directories(path: Path) -> list[tuple[int, Path]]:
    """Return ``(number, directory)`` of every rank below a run's directory, in order."""
    found = []
    for directory in path.glob(f"{RANK_PREFIX}*"):
        number = directory.name.removeprefix(RANK_PREFIX)
        if directory.is_dir() and number.isdecimal():
            found.append((int(number), directory))
    return sorted(found)


def write_json(path: Path, value: dict[str, Any], *, inside: Path | None = None) -> None:
    """Write ``value`` as :func:`gpuledger.files.writing.replaced` does."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True) + "\n"
    write_whole(path, text.encode("ascii"), inside=inside)


def read_versioned(path: Path) -> dict[str, Any]:
    """Return the object in a manifest after checking only its version.

    Raises:
        InputError: missing, not JSON, not an object, or of a newer schema.
    """
    with reading(path, "not a run's manifest"):
        try:
            value = read_json_file(path)
        except FileNotFoundError as error:
            raise InputError(f"{path}: no such file") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a run's manifest: expected a JSON object")
    version = value.get("schema_version")
    if not isinstance(version, int):
        raise InputError(f"{path}: not a run's manifest: schema_version is missing")
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{path.parent}: schema version {version}, but this gpuledger reads up to version {SCHEMA_VERSION}",
            hint="pip install --upgrade gpuledger",
        )
    return value
