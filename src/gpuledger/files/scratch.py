"""Temporary directories that are removed when the objects that read them are gone, or this process ends."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "gpuledger-"


@contextmanager
def scratch_directory() -> Iterator[tuple[Path, Callable[..., None]]]:
    """Yield a new directory, and a function that keeps it as long as one of the objects that it is called with.

    Without such an object, it is removed at the end of the block.
    """
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    owners: list[weakref.finalize[..., object]] = []

    def keep_with(*kept: object) -> None:
        owners.extend(weakref.finalize(owner, gone, os.getpid()) for owner in kept)

    def gone(process: int) -> None:
        if not any(owner.alive for owner in owners):
            _remove(directory, process)

    try:
        yield directory, keep_with
    finally:
        if not owners:
            _remove(directory, os.getpid())


def _remove(directory: Path, process: int) -> None:
    """Remove a directory, unless this is a fork of the process that has made it."""
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)
