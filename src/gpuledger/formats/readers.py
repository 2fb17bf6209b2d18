"""The formats that gpuledger reads, detected by content. Files are untrusted: they are parsed, never executed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuledger.errors import InputError, UsageError
from gpuledger.files.reading import open_regular, reading
from gpuledger.model.imported import ImportedRun

HEAD_BYTES = 65_536


@dataclass(frozen=True)
class ReaderOption:
    """An option of ``gpuledger import`` for a format: ``--name METAVAR``. The reader parses its value from a text.

    ``name`` has underscores for dashes, as in the reader's ``options``.
    """

    name: str
    metavar: str
    summary: str

    @property
    def flag(self) -> str:
        """Return the option as written on the command line."""
        return f"--{self.name.replace('_', '-')}"


@dataclass(frozen=True)
class Format:
    """One older format. ``place`` is its module below :mod:`gpuledger.formats`, imported on first use.

    The module has two functions. ``looks_like(path, head)`` returns whether a file (its first :data:`HEAD_BYTES`
    bytes) or a folder (``head`` is empty) is of this format. ``read_files(paths, name, options)`` returns an
    :class:`~gpuledger.model.imported.ImportedRun`, or raises ``InputError`` if nothing could be read. ``options`` are
    those of ``gpuledger import``; each reader accepts its own and rejects others.

    ``one_run_each`` is True if each file is a run of its own, and a folder selects the files of this format in it.
    Otherwise all given files are one run, except for those that the module's ``single_runs(files)`` returns.
    """

    place: str
    summary: str
    options: tuple[ReaderOption, ...] = ()
    one_run_each: bool = False


INTERVAL = ReaderOption("interval", "TIME", "time between samples, if the file has no times.  [default: 10ms]")

FORMATS: dict[str, Format] = {
    "torch-snapshot": Format("torch_snapshot", "snapshots of torch.cuda.memory._dump_snapshot()"),
    "memory-csv": Format("memory_csv", "CSV files of pytorch_mem_profiler and of gpuledger", one_run_each=True),
    "mxnet": Format("mxnet.files", "CSV, JSON, .log files of MXNet's profiler, one per rank"),
    "tbd-log": Format("tbd", "logs with [mem] lines of a patched MXNet, _ANALYSIS files", one_run_each=True),
    "nvidia-smi": Format(
        "nvidia_smi",
        "logs of nvidia-smi --query-gpu=… --format=csv",
        (INTERVAL, ReaderOption("columns", "A,B,…", "columns of a file without a header, named as for --query-gpu.")),
        one_run_each=True,
    ),
    "time-log": Format("time_log", "times of layers in ms: ALGO, BATCH, TIME_TYPE, ms…", one_run_each=True),
}
"""Formats in the order in which the content is checked, the unambiguous ones first."""


def read_files(format_name: str, paths: Sequence[Path], name: str, options: Mapping[str, Any]) -> ImportedRun:
    """Return the contents of the files in the format of this name; ``unread`` has the paths that cannot be opened.

    Raises:
        UsageError: there is no such format, or it has no such option.
        InputError: nothing could be read.
    """
    taken = {option.name for option in format_of(format_name).options}
    refused = sorted(set(options) - taken)
    if refused:
        raise UsageError(f"import {format_name}: {ReaderOption(refused[0], '', '').flag} does not apply to this format")
    problems = {path: problem for path in paths if (problem := _why_closed(path))}
    unread = tuple(f"{path}: {problem}" for path, problem in problems.items())
    if len(problems) == len(paths):
        raise InputError(unread[0] if unread else "import: no files given")
    readable = tuple(path for path in paths if path not in problems)
    with reading(readable[0] if len(readable) == 1 else f"{readable[0]}, …"):
        imported: ImportedRun = _module(format_name).read_files(readable, name, dict(options))
    return replace(imported, unread=(*unread, *imported.unread))


def format_of(format_name: str) -> Format:
    """Return the format of this name.

    Raises:
        UsageError: there is no such format.
    """
    if format_name not in FORMATS:
        raise UsageError(f"unknown format {format_name!r}", hint=f"Use one of {', '.join(FORMATS)}")
    return FORMATS[format_name]


def find_format(path: Path) -> str | None:
    """Return the name of the format that a file or folder looks like; None if it looks like none.

    Raises:
        InputError: it is missing or cannot be opened.
    """
    problem = _why_closed(path)
    if problem:
        raise InputError(f"{path}: {problem}")
    own = next((name for name in FORMATS if _looks_like(name, path)), None)
    if own or not path.is_dir():
        return own
    return next((name for name in FORMATS if FORMATS[name].one_run_each and files_inside(path, name).known), None)


@dataclass(frozen=True)
class Inside:
    """The files of a format in a folder, and the reasons why similar files could not be read as this format."""

    known: tuple[Path, ...]
    unread: tuple[str, ...]


def files_inside(folder: Path, format_name: str) -> Inside:
    """Return the files in a folder that are of a format, and notes on similar files that are not.

    A similar file has the same name suffix as a file of the format.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file() or path.is_symlink())
    closed = {path: problem for path in files if (problem := _why_closed(path))}
    known = tuple(path for path in files if path not in closed and _looks_like(format_name, path))
    endings = {path.suffix for path in known}
    unread = []
    for path in (one for one in files if one not in known and one.suffix in endings):
        empty = f"empty, so no {format_name} file"
        reason = closed.get(path) or (f"line 1: not of format {format_name}" if path.stat().st_size else empty)
        unread.append(f"{path}: {reason}")
    return Inside(known, tuple(unread))


def single_paths(paths: Sequence[Path], format_name: str) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Return the paths that are one run each (empty if all are one run), and notes on what cannot be read."""
    known: list[Path] = []
    unread: list[str] = []
    for path in paths:
        inside = files_inside(path, format_name) if path.is_dir() else Inside((path,), ())
        known += inside.known
        unread += inside.unread
    if FORMATS[format_name].one_run_each:
        return tuple(known), tuple(unread)
    single = getattr(_module(format_name), "single_runs", None)
    found: tuple[Path, ...] = () if single is None else single(tuple(known))
    return found, tuple(unread)


def logs_inside(folder: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Return the files of a folder that are one run each, of every format, and notes on similar files."""
    found: dict[Path, None] = {}
    problems: dict[str, None] = {}
    for format_name in FORMATS:
        single, unread = single_paths([folder], format_name)
        found.update(dict.fromkeys(single if len(single) > 1 or FORMATS[format_name].one_run_each else ()))
        problems.update(dict.fromkeys(unread))
    known = {str(path) for path in found}
    left = {text.partition(": ")[0]: text for text in problems if text.partition(": ")[0] not in known}
    return tuple(sorted(found)), tuple(left.values())


def _looks_like(format_name: str, path: Path) -> bool:
    return bool(_module(format_name).looks_like(path, b"" if path.is_dir() else _head(path)))


def _why_closed(path: Path) -> str:
    """Return why a path cannot be opened; "" if it can."""
    try:
        next(path.iterdir(), None) if path.is_dir() else _head(path)
    except OSError as error:
        return error.strerror or str(error)
    except InputError:
        return "not a regular file"
    return ""


def _head(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read(HEAD_BYTES)


def _module(format_name: str) -> Any:
    return importlib.import_module(f"gpuledger.formats.{FORMATS[format_name].place}")
