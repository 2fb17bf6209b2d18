"""Writes a run: opens its directory, has it replace an old one, closes it, and has it posted.

Every recording goes through :class:`RunWriter`: ``gpuledger run``, ``record``, ``watch``, ``estimate``, and what a
process records by itself. What runs in a recorded program may use all of it: numpy and the standard library suffice.
A recorded process closes its run at its exit; what is loaded then must not make a dataclass: Python forgets that an
interrupt was not handled when text is compiled, and would end with status 1 instead of the signal.

What is to replace a run is made beside it, under a hidden name, and changes places with it in one step when the
recording has really begun. Until then the old run is untouched, whatever happens to the program or to this process.

Every run has a number of its own, ``run_id`` in its manifest. A process that recorded into a run which has been
replaced since finds another number there, and writes no more.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

from gpuledger._version import __version__
from gpuledger.errors import GpuLedgerError, InputError, words_of
from gpuledger.model.run_directory import MANIFEST, SUFFIX, choose_directory, rank_directories
from gpuledger.model.run_manifest import RunManifest, read_run_manifest, write_run_manifest
from gpuledger.model.tables import SCHEMA_VERSION
from gpuledger.redact import redact

NOTHING_SEEN = "No PyTorch process wrote a recording. (Python processes started with -I, -E or -S cannot be recorded.)"

_RAW_BYTE = re.compile("[\udc80-\udcff]")
"""Python's stand-in for a byte that is not UTF-8 (PEP 383)."""

_RENAME_EXCHANGE = 2
"""Of ``renameat2(2)``: both names exist before and after."""
_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""What file systems that cannot do it answer, such as NFS."""


class RunReplacedError(InputError):
    """The run that was written to is not there any more, or another one is in its place."""


class RunWriter:
    """Writes one run, from :meth:`open`, :meth:`choose` or :meth:`open_shared` to :meth:`close`.

    Attributes:
        path: Where the run belongs.
        directory: Where it is now; ``path`` after :meth:`take_place`.
        run_id: Its number.
    """

    def __init__(self, path: Path, directory: Path, run_id: str) -> None:
        self.path = path
        self.directory = directory
        self.run_id = run_id
        self._pid = os.getpid()

    # -- opening ----------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: Path, manifest: RunManifest, *, replace: bool = False) -> RunWriter:
        """Return the writer of a run after making its directory and writing its manifest.

        Args:
            path: Where the run belongs.
            manifest: As :func:`new_manifest` returns it; has a ``run_id``.
            replace: Whether a run that is in ``path`` is to be replaced by :meth:`take_place`.

        Raises:
            FileExistsError: something is in ``path``, and ``replace`` is not given.
            OSError: it cannot be written; nothing is left. ``filename`` is ``path``.
        """
        run_id = str(manifest.run_id)
        hidden = path.with_name(f".gpuledger-{run_id}")
        directory = hidden if replace and path.exists() else path
        run = cls(path, directory, run_id)
        try:
            directory.mkdir(parents=True)
            with run._discarding():
                write_run_manifest(directory, manifest)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        return run

    @classmethod
    def choose(
        cls,
        out: str | None,
        *,
        force: bool,
        stem: str,
        command: Sequence[str] = (),
        settings: Mapping[str, tuple[Any, str]] | None = None,
        of_this_process: bool = False,
    ) -> RunWriter:
        """Return the writer of a run whose directory :func:`.run_directory.choose_directory` chooses.

        Args:
            out: The name that the user gave, if any.
            force: Whether a run of that name is replaced.
            stem: What the run is called where nobody named it.
            command: The program and its arguments.
            settings: ``name -> (value, where it came from)``.
            of_this_process: Whether the run is one of this process: it is called ``stem``, wherever it is kept, its
                path is absolute, as the process may change its directory, and it takes its place now.

        Raises:
            UsageError: ``out`` exists and ``force`` is not given, or it is not a run.
            OSError: it cannot be written; nothing is left. ``filename`` is the run's path.
        """
        while True:
            path = choose_directory(out, force=force, stem=stem)
            path = path.absolute() if of_this_process else path
            manifest = new_manifest(stem if of_this_process else path.name, command, settings or {})
            try:
                run = cls.open(path, manifest, replace=force)
            except FileExistsError:
                if path.is_dir():
                    continue  # another recording took the name in between: choose anew, or be refused
                raise
            if of_this_process:
                with run.placing():
                    pass
            return run

    @classmethod
    def open_shared(cls, path: Path, manifest: RunManifest) -> RunWriter | None:
        """Return the writer of a run that several processes may open; None where another one was quicker.

        Raises:
            OSError: it cannot be written.
        """
        path.mkdir(parents=True, exist_ok=True)
        beside = write_run_manifest(path, manifest, f"manifest.{os.getpid()}.json")
        try:
            os.link(beside, path / MANIFEST)
        except FileExistsError:
            return None
        finally:
            beside.unlink()
        return cls(path, path, str(manifest.run_id))

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

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Have the run take its place at the end of the block; it is removed where the block raises."""
        with self._discarding():
            yield
            self.take_place()

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.discard()
            raise

    # -- under way --------------------------------------------------------------------------------------------------

    @property
    def is_of_this_process(self) -> bool:
        """Return whether this process opened the run; a forked child leaves it to its parent."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Do nothing while the run is in its place.

        Raises:
            RunReplacedError: another recording has taken it.
        """
        check_run(self.path, self.run_id)

    def discard(self) -> None:
        """Remove the run: what it was made for did not begin."""
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- closing ----------------------------------------------------------------------------------------------------

    def close(
        self,
        notes: Sequence[str] = (),
        *,
        status: int | None = None,
        times_ns: tuple[int, int] | None = None,
        post: Callable[[Path], object] = lambda _: None,
    ) -> None:
        """Write into the manifest that the run is complete, and post it.

        Args:
            notes: Sentences for whoever reads the run, after those that its processes left.
            status: The program's exit status, negative for the signal that ended it; None where nobody knows.
            times_ns: When it began and ended, where that is not when the run was opened and now.
            post: Makes the tables of the run in a directory.

        Raises:
            RunReplacedError: another recording has taken its place.
            OSError: the manifest, or what is posted, cannot be written.
            InputError: the manifest cannot be read any more.
        """
        check_run(self.directory, self.run_id)
        manifest = read_run_manifest(self.directory)
        notes = [*_left_notes(self.directory), *notes]
        if not notes and not rank_directories(self.directory):
            notes = [NOTHING_SEEN]
        started_ns, ended_ns = times_ns or (manifest.started_ns, time.time_ns())
        closed = replaced(
            manifest, status="complete", started_ns=started_ns, ended_ns=ended_ns, notes=(*manifest.notes, *notes)
        )
        if status is not None:
            exit_status, signal = (status, None) if status >= 0 else (128 - status, -status)
            closed = replaced(closed, exit_status=exit_status, signal=signal)
        write_run_manifest(self.directory, closed)
        post(self.directory)

    @contextmanager
    def adding_to(self, error: BaseException | None) -> Iterator[None]:
        """Have what fails in the block raised, or told in a note of ``error`` where that is on its way already."""
        try:
            yield
        except (OSError, GpuLedgerError) as failure:
            if error is None:
                raise
            error.add_note(f"gpuledger: {self.path.name} could not be written: {words_of(failure)}")


def new_manifest(name: str, command: Sequence[str], settings: Mapping[str, tuple[Any, str]]) -> RunManifest:
    """Return the manifest of a run that begins now."""
    value = {
        "schema_version": SCHEMA_VERSION,
        "gpuledger_version": __version__,
        "run_id": os.urandom(8).hex(),
        "name": readable(name.removesuffix(SUFFIX)),
        "command": [readable(word) for word in redact(command)],
        "started_ns": time.time_ns(),
        "ended_ns": None,
        "exit_status": None,
        "signal": None,
        "status": "running",
        "settings": {key: {"value": value, "origin": origin} for key, (value, origin) in settings.items()},
        "notes": [],
    }
    return RunManifest.from_json(value)  # and not made of its fields: an absent key stays absent


def readable(text: str) -> str:
    """Return a word of a command line in valid Unicode: a byte that is not UTF-8 as a shell's ``$'…'`` takes it."""
    return (
        _RAW_BYTE.sub(lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", text).encode(errors="backslashreplace").decode()
    )


def _left_notes(run_directory: Path) -> list[str]:
    """Return what processes of the run wrote down for it, each sentence once."""
    lines: list[str] = []
    for place in sorted((run_directory / "notes").glob("*.txt")):
        lines += [line for line in place.read_text(encoding="utf-8", errors="replace").splitlines() if line]
    return list(dict.fromkeys(lines))


def check_run(path: Path, run_id: str | None) -> None:
    """Do nothing where ``path`` holds the run with this number.

    Raises:
        RunReplacedError: it holds another run, or none.
    """
    found = find_run_id(path)
    if found != run_id:
        raise RunReplacedError(
            f"{path}: "
            + ("another recording replaced this run" if found else "the run was deleted while it was written")
        )


def find_run_id(path: Path) -> str | None:
    """Return the number of the run in ``path``; None where there is none, or where it has no number."""
    try:  # read at each recorded step, inside the program: not checked as a whole
        found = json.loads((path / MANIFEST).read_bytes())["run_id"]
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
