"""A new run's directory, and how it takes the place of an old one.

What is to replace a run is made beside it, under a hidden name, and changes places with it in one step when the
recording has really begun. Until then the old run is untouched, whatever happens to the program or to this process.

Every run has a number of its own, ``run_id`` in its manifest. A process that recorded into a run which has been
replaced since finds another number there, and writes no more.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuledger.errors import InputError
from gpuledger.model.run import write_json

_RENAME_EXCHANGE = 2
"""Of ``renameat2(2)``: both names exist before and after."""
_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""What file systems that cannot do it answer, such as NFS."""


class RunReplacedError(InputError):
    """The run that was written to is not there any more, or another one is in its place."""


class NewRun:
    """A run that was just made; see :func:`make_run`.

    Attributes:
        path: Where the run belongs.
        directory: Where it is now; ``path`` after :meth:`take_place`.
        run_id: Its number.
    """

    def __init__(self, path: Path, directory: Path, run_id: str) -> None:
        self.path = path
        self.directory = directory
        self.run_id = run_id

    def take_place(self) -> None:
        """Move the run to where it belongs, and remove the run it replaces.

        Raises:
            OSError: it cannot be moved; the old run is still in its place.
        """
        if self.directory == self.path:
            return
        hidden, self.directory = self.directory, self.path
        try:
            replaced = _change_places(hidden, self.path)
        except OSError:
            self.directory = hidden
            raise
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)

    def check(self) -> None:
        """Do nothing while the run is in its place.

        Raises:
            RunReplacedError: another recording has taken it.
        """
        check_run(self.path, self.run_id)

    def discard(self) -> None:
        """Remove the run: what it was made for did not begin."""
        shutil.rmtree(self.directory, ignore_errors=True)


def make_run(path: Path, manifest: dict[str, Any], *, replace: bool = False) -> NewRun:
    """Return a run after making its directory and writing its manifest, which has a ``run_id``.

    Args:
        path: Where the run belongs.
        manifest: The run's manifest.
        replace: Whether a run that is in ``path`` is to be replaced by :meth:`NewRun.take_place`.

    Raises:
        FileExistsError: something is in ``path``, and ``replace`` is not given.
        OSError: it cannot be written; nothing is left.
    """
    run_id = str(manifest["run_id"])
    hidden = path.with_name(f".gpuledger-{run_id}")
    directory = hidden if replace and path.exists() else path
    directory.mkdir(parents=True)
    run = NewRun(path, directory, run_id)
    try:
        write_json(directory / "manifest.json", manifest)
    except BaseException:
        run.discard()
        raise
    return run


@contextmanager
def made_run(path: Path, manifest: dict[str, Any], *, replace: bool = False) -> Iterator[NewRun]:
    """Return a run that takes its place at the end of the block; it is removed where the block raises.

    Raises:
        FileExistsError: something is in ``path``, and ``replace`` is not given.
        OSError: it cannot be written; nothing is left.
    """
    run = make_run(path, manifest, replace=replace)
    try:
        yield run
        run.take_place()
    except BaseException:
        run.discard()
        raise


def check_run(path: Path, run_id: str | None) -> None:
    """Do nothing where ``path`` holds the run with this number.

    Raises:
        RunReplacedError: it holds another run, or none.
    """
    found = find_run_id(path)
    if found != run_id:
        raise RunReplacedError(f"{path}: " + ("replaced by another recording" if found else "the run is gone"))


def find_run_id(path: Path) -> str | None:
    """Return the number of the run in ``path``; None where there is none, or where it has no number."""
    try:  # read at each recorded step, inside the program: not checked as a whole
        found = json.loads((path / "manifest.json").read_bytes())["run_id"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _change_places(hidden: Path, path: Path) -> Path | None:
    """Move ``hidden`` to ``path``; return where the run is that was there, None where there was none."""
    aside = hidden.with_suffix(".old")
    while True:
        try:
            if _exchange(hidden, path):
                return hidden
            path.rename(aside)
        except FileNotFoundError:
            if not hidden.exists():
                raise  # else the old run has been removed since: there is nothing to put aside
        try:
            hidden.rename(path)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):  # another recording was quicker: replace that one
                shutil.rmtree(aside, ignore_errors=True)
                continue
            if aside.exists():
                aside.rename(path)
            raise
        return aside if aside.exists() else None


def _exchange(first: Path, second: Path) -> bool:
    """Have two directories change their names in one step; return False where the system cannot do that.

    Raises:
        OSError: it can, and refuses.
    """
    import ctypes  # not in every process that is recorded

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    names = [os.fsencode(path.absolute()) for path in (first, second)]
    if rename(-1, names[0], -1, names[1], _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(second))
