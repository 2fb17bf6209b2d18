"""Temporary directories that are removed when the object that reads them is gone, or this process ends."""

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
def scratch_directory() -> Iterator[tuple[Path, Callable[[object], None]]]:
    """Yield a new directory, and what keeps it as long as an object. Without an object, it is removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    owners: list[weakref.finalize[..., object]] = []

    def keep_with(owner: object) -> None:
        owners.append(weakref.finalize(owner, _remove, directory, os.getpid()))

    try:
        yield directory, keep_with
    finally:
        if not owners:
            _remove(directory, os.getpid())


def _remove(directory: Path, process: int) -> None:
    """Remove a directory, unless this is a fork of the process that has made it."""
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)
