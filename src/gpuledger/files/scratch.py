"""Temporary directories that are removed when the objects that read them are gone, or this process ends.

If a signal ends a command of gpuledger's, :mod:`gpuledger.cli.ending` calls :func:`remove_all` first.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

PREFIX = "gpuledger-"

_made: dict[Path, int] = {}
"""Directory -> the process that has made it, until it is removed."""


def process_directory(prefix: str = PREFIX, beside: Path | None = None) -> Path:
    """Return a new directory that is removed with :func:`remove`, or when this process ends.

    It is in the directory for temporary files, or in ``beside``.
    """
    _remove_at_exit()
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=beside))
    _made[directory] = os.getpid()
    return directory


@contextmanager
def block_directory(prefix: str = PREFIX, beside: Path | None = None) -> Iterator[Path]:
    """Yield a new directory that is removed at the end of the block, or when this process ends."""
    directory = process_directory(prefix, beside)
    try:
        yield directory
    finally:
        remove(directory)


@contextmanager
def scratch_directory() -> Iterator[tuple[Path, Callable[..., None]]]:
    """Yield a new directory, and a function that keeps it as long as one of the objects that it is called with.

    Without such an object, it is removed at the end of the block.
    """
    directory = process_directory()
    owners: list[weakref.finalize[..., object]] = []

    def keep_with(*kept: object) -> None:
        owners.extend(weakref.finalize(owner, gone) for owner in kept)

    def gone() -> None:
        if not any(owner.alive for owner in owners):
            remove(directory)

    try:
        yield directory, keep_with
    finally:
        if not owners:
            remove(directory)


def remove(directory: Path) -> None:
    """Remove a directory of this process. In a fork of the process that has made it, it stays."""
    if _made.pop(directory, None) == os.getpid():
        shutil.rmtree(directory, ignore_errors=True)


@cache
def _remove_at_exit() -> None:
    """Have this process remove its directories when it ends. Not at import: recorded programs make no directory."""
    atexit.register(remove_all)


def remove_all() -> None:
    """Remove every directory of this process that is still there."""
    for directory in list(_made):
        remove(directory)
