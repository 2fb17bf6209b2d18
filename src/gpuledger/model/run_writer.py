"""Write a run: create its directory, replace an older run, and close it.

Every recording uses :class:`RunWriter`: ``gpuledger run``, ``record``, ``watch``, ``estimate``, and processes that
record themselves. All of it can run in a recorded program: it needs only numpy and the standard library. A recorded
process closes its run at exit. Code loaded then must not create a dataclass: compiling text makes Python forget that an
interrupt was not handled, so it would exit with status 1 instead of the signal.

A run that replaces another is created beside it under a hidden name. The two are exchanged in one step once the
recording has begun. Until then the old run is unchanged, even if the program or this process crashes.

Every run has a unique ``run_id`` in its manifest. A process that records into a run which was replaced finds another id
there, and stops writing.
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
from gpuledger.model.schema.tables import SCHEMA_VERSION
from gpuledger.redact import redact
from gpuledger.units import signal_name

NOTHING_SEEN = "No PyTorch process wrote a recording. (Python processes started with -I, -E or -S cannot be recorded.)"

_RAW_BYTE = re.compile("[\udc80-\udcff]")
"""Python's placeholder for a byte that is not UTF-8 (PEP 383)."""

_RENAME_EXCHANGE = 2
"""Flag of ``renameat2(2)``: exchange two existing names."""
_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems without this exchange, such as NFS."""


class RunReplacedError(InputError):
    """The run does not exist any more, or another run has replaced it."""


class RunWriter:
    """Writes one run, from :meth:`open`, :meth:`choose` or :meth:`open_shared` to :meth:`close`.

    Attributes:
        path: Final path of the run.
        directory: Its current path; equal to ``path`` after :meth:`take_place`.
        run_id: Its unique id.
    """

    def __init__(self, path: Path, directory: Path, run_id: str) -> None:
        self.path = path
        self.directory = directory
        self.run_id = run_id
        self._pid = os.getpid()

    # -- opening ----------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: Path, manifest: RunManifest, *, replace: bool = False) -> RunWriter:
        """Return the writer of a run after creating its directory and writing its manifest.

        Args:
            path: Final path of the run.
            manifest: As :func:`new_manifest` returns it; has a ``run_id``.
            replace: Whether :meth:`take_place` replaces an existing run in ``path``.

        Raises:
            FileExistsError: ``path`` exists, and ``replace`` is False.
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
        """Return the writer of a run in the directory that :func:`.run_directory.choose_directory` selects.

        Args:
            out: The name given by the user, if any.
            force: Whether a run of that name is replaced.
            stem: Name of the run if the user gave none.
            command: The program and its arguments.
            settings: ``name -> (value, source of the value)``.
            of_this_process: Whether this process records itself. The run then gets the name ``stem``, wherever it is
                kept; its path is absolute, because the process can change its directory; and it replaces an older run
                now.

        Raises:
            UsageError: ``out`` exists and ``force`` is False, or it is not a run.
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
                    continue  # another recording has taken the name meanwhile: choose again, or raise
                raise
            if of_this_process:
                with run.placing():
                    pass
            return run

    @classmethod
    def open_shared(cls, path: Path, manifest: RunManifest) -> RunWriter | None:
        """Return the writer of a run that several processes can create; None if another one was first.

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

    def name_job(self, job: str) -> None:
        """Store what the processes of the run's job have in common.

        Raises:
            OSError: it cannot be written.
        """
        write_run_manifest(self.directory, replaced(read_run_manifest(self.directory), job=job))

    def take_place(self) -> None:
        """Move the run to its final path, and remove the run that it replaces.

        Raises:
            OSError: it cannot be moved; the old run is unchanged.
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
        """Move the run to its final path at the end of the block. If the block raises, remove the run."""
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
        """Return whether this process created the run. A forked child must not close it."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Check that the run has not been replaced.

        Raises:
            RunReplacedError: another recording has replaced it.
        """
        check_run(self.path, self.run_id)

    def discard(self) -> None:
        """Remove the run, because the recording did not begin."""
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
        """Mark the run as complete in its manifest, and build its tables.

        Args:
            notes: Notes to show with the run, after those of its processes.
            status: The program's exit status, negative for the signal that ended it; None if unknown.
            times_ns: Start and end of the program, if these are not the creation of the run and now. Unix ns.
            post: Builds the tables of the run in a directory.

        Raises:
            RunReplacedError: another recording has replaced the run.
            OSError: the manifest or the tables cannot be written.
            InputError: the manifest cannot be read any more.
        """
        check_run(self.directory, self.run_id)
        manifest = read_run_manifest(self.directory)
        notes = [*_left_notes(self.directory), *notes]
        exit_status, signal = (None, None) if status is None else exit_status_of(status)
        if not notes and not rank_directories(self.directory):
            ended = "" if signal is None else f"{signal_name(signal)} ended the program before it wrote a recording."
            notes = [ended or NOTHING_SEEN]
        started_ns, ended_ns = times_ns or (manifest.started_ns, time.time_ns())
        closed = replaced(
            manifest, status="complete", started_ns=started_ns, ended_ns=ended_ns, notes=(*manifest.notes, *notes)
        )
        if status is not None:
            closed = replaced(closed, exit_status=exit_status, signal=signal)
        write_run_manifest(self.directory, closed)
        post(self.directory)

    @contextmanager
    def adding_to(self, error: BaseException | None) -> Iterator[None]:
        """Raise a failure in the block; if ``error`` is already being raised, add the failure to it as a note."""
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
    return RunManifest.from_json(value)  # and not created from its fields: an absent key stays absent


def exit_status_of(status: int) -> tuple[int, int | None]:
    """Return a shell's exit status, and the signal that ended the process; ``status`` is negative for a signal."""
    return (status, None) if status >= 0 else (128 - status, -status)


def readable(text: str) -> str:
    """Return a command-line word in valid Unicode. A byte that is not UTF-8 is written as in a shell's ``$'…'``."""
    return (
        _RAW_BYTE.sub(lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", text).encode(errors="backslashreplace").decode()
    )


def _left_notes(run_directory: Path) -> list[str]:
    """Return the notes that processes of the run have written, each once."""
    lines: list[str] = []
    for place in sorted((run_directory / "notes").glob("*.txt")):
        lines += [line for line in place.read_text(encoding="utf-8", errors="replace").splitlines() if line]
    return list(dict.fromkeys(lines))


def check_run(path: Path, run_id: str | None) -> None:
    """Check that ``path`` contains the run with this id.

    Raises:
        RunReplacedError: it contains another run, or none.
    """
    found = find_run_id(path)
    if found != run_id:
        raise RunReplacedError(
            f"{path}: "
            + ("another recording replaced this run" if found else "the run was deleted while it was written")
        )


def find_run_id(path: Path) -> str | None:
    """Return the id of the run in ``path``; None if there is no run, or it has no id."""
    try:  # read at each recorded step, inside the program: so the manifest is not validated
        found = json.loads((path / MANIFEST).read_bytes())["run_id"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _change_places(hidden: Path, path: Path) -> Path | None:
    """Move ``hidden`` to ``path``. Return the new path of the run that was there; None if there was none."""
    aside = hidden.with_suffix(".old")
    while True:
        try:
            if _exchange(hidden, path):
                return hidden
            path.rename(aside)
        except FileNotFoundError:
            if not hidden.exists():
                raise  # otherwise the old run has been removed meanwhile
        try:
            hidden.rename(path)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):  # another recording was first: replace that one
                shutil.rmtree(aside, ignore_errors=True)
                continue
            if aside.exists():
                aside.rename(path)
            raise
        return aside if aside.exists() else None


def _exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two directories in one step. Return False if the system cannot do that.

    Raises:
        OSError: the system supports it, but it failed.
    """
    import ctypes  # imported here, so that not every recorded process imports it

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
