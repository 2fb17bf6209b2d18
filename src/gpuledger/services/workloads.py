"""Workloads captured from models or created from lists, and their files."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.errors import GpuLedgerError, InputError, UsageError
from gpuledger.files.writing import is_taken, write_whole

if TYPE_CHECKING:
    from gpuledger.ops.exchange.import_rows import ImportedRows
    from gpuledger.ops.exchange.printed_lines import UnreadLine
    from gpuledger.ops.measure.measured_device import Device
    from gpuledger.ops.workloads.workload import Workload
    from gpuledger.ops.workloads.workload_spec import WorkloadSpec

UNREAD_NAME = "unread-lines{}.csv"
LeftOut = Callable[["WorkloadSpec", GpuLedgerError], None]
"""Called with a model that could not be captured, and the error."""


def capture_models(wanted: Sequence[WorkloadSpec], gpu: str | None = None, *, left_out: LeftOut) -> Iterator[Workload]:
    """Yield the workload of each model once it is captured. Of several models, those that fail are skipped.

    Args:
        wanted: The models.
        gpu: ``cpu`` or a GPU of the catalogue. By default the GPU of this machine, otherwise a simulated
            H200.
        left_out: Called with each model that is skipped.

    Raises:
        UsageError: a name, size, optimizer or dtype is invalid (before anything is captured); or the only model does
            not exist, or its library is not installed.
        InputError: the only model could not be captured; or one of several, raised after the last.
    """
    from gpuledger.ops.workloads.captures import asked_for, capture_model, default_gpu

    chosen = gpu or default_gpu()
    asked = [(one, asked_for(one)) for one in wanted]
    failed = 0
    for one, order in asked:
        try:
            workload = capture_model(order, chosen)
        except (UsageError, InputError) as error:
            if len(asked) == 1:
                raise
            failed += 1
            left_out(one, error)
            continue
        yield workload
    refuse_left_out(failed, len(asked))


def refuse_left_out(failed: int, asked: int, hint: str | None = None) -> None:
    """Do nothing if every model was captured.

    Raises:
        InputError: ``failed`` of ``asked`` models were not.
    """
    if failed:
        raise InputError(f"{failed} of {asked} workloads were not captured", hint=hint)


def capture_all(wanted: Sequence[WorkloadSpec], place: Device, folder: Path, left_out: LeftOut) -> list[Workload]:
    """Return the workloads after writing them into ``folder``. Skips models that cannot be captured.

    Raises:
        InputError: none could be captured.
    """
    from gpuledger.ops.workloads.captures import asked_for, capture_model

    workloads: list[Workload] = []
    first: GpuLedgerError | None = None
    folder.mkdir(parents=True, exist_ok=True)
    for one in wanted:
        try:
            workload = capture_model(asked_for(one), None if place.on_card else "cpu")
        except GpuLedgerError as error:
            first = first or error
            left_out(one, error)
            continue
        write_whole(folder / workload.file_name, workload.encoded())
        workloads.append(workload)
    if not workloads:
        raise InputError("campaign: no workload could be captured", hint=None if first is None else first.message)
    return workloads


def write_workloads(
    captured: Iterable[Workload], output: Path | None = None, *, single: bool, replace: bool = False
) -> Iterator[tuple[Path, Workload]]:
    """Yield each workload with its file, after writing it.

    Does not overwrite existing files without ``replace``. If ``output`` is the file, this is checked before capturing.

    Args:
        captured: The workloads, for example from :func:`capture_models`.
        output: The file of a ``single`` workload, or a folder, which is created. By default the current directory.
        single: Whether at most one workload is captured.
        replace: Whether existing files are replaced.

    Raises:
        UsageError: a file exists and ``replace`` is not given.
    """
    named = output if single and output is not None and not output.is_dir() else None
    if named is not None:
        refuse_taken(named, replace=replace)
    for workload in captured:
        if named is not None:
            refuse_taken(named, replace=replace)  # the captured program may have created it
            workload.write(named)
            yield named, workload
            continue
        folder = output or Path()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / workload.file_name
        refuse_taken(path, replace=replace)
        write_whole(path, workload.encoded())
        yield path, workload


def import_lists(paths: Sequence[Path], folder: Path, *, replace: bool = False) -> Iterator[tuple[Path, Workload]]:
    """Yield the workload of each tritonbench list with its file in ``folder``, after writing it.

    All lists are read, and all files checked, before the first is written.

    Raises:
        InputError: a list cannot be read.
        UsageError: a file exists and ``replace`` is not given.
    """
    from gpuledger.ops.exchange.import_lists import read_list
    from gpuledger.ops.workloads.workload import SUFFIX

    read = [(folder / (path.stem + SUFFIX), read_list(path)) for path in paths]
    for place, _ in read:
        refuse_taken(place, replace=replace, other="folder")
    folder.mkdir(parents=True, exist_ok=True)
    for place, workload in read:
        write_whole(place, workload.encoded())
        yield place, workload


def import_rows(
    paths: Sequence[Path], gpu: str, database_url: str, *, tf32: bool | None = None, clock_mhz: int | None = None
) -> ImportedRows:
    """Return what ml-operator-profiling's printed rows gave, after writing it into the database.

    Where no row can be read, no database is made.

    Args:
        paths: The files.
        gpu: The GPU that they were measured on.
        database_url: A file or a URL, as :func:`gpuledger.ops.database.operator_database.open_database` takes it.
        tf32: Whether TF32 was on; None if the files have it.
        clock_mhz: The graphics clock; None if the files have it, or if it is unknown.

    Raises:
        InputError: a file cannot be read, or the database is none.
    """
    from gpuledger.ops.database.operator_database import open_database
    from gpuledger.ops.exchange.import_rows import RowSettings, read_rows

    found = read_rows(paths, gpu, RowSettings(tf32, clock_mhz))
    if found.records:
        with open_database(database_url) as database:
            database.put_keys(found.keys)
            for environment in found.environments:
                database.put_environment(environment)
            database.put_records(found.records)
    return found


def list_unread(unread: Iterable[UnreadLine], folder: Path) -> Path:
    """Return the CSV file in ``folder`` that unread lines were listed in; no file is replaced."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("file", "line", "reason", "text"))
    rows.writerows((one.path, one.line, one.reason, one.text) for one in unread)
    folder.mkdir(parents=True, exist_ok=True)
    names = (UNREAD_NAME.format("" if number == 1 else f"-{number}") for number in itertools.count(1))
    path = next(folder / name for name in names if not is_taken(folder / name))
    write_whole(path, text.getvalue().encode(errors="backslashreplace"))
    return path


def refuse_taken(path: Path, *, replace: bool, other: str = "name") -> None:
    """Do nothing if a file can be written without overwriting one.

    Raises:
        UsageError: it exists and ``replace`` is not given. ``other`` names the alternative in the hint.
    """
    if is_taken(path) and not replace:
        raise UsageError(
            f"{path}: already exists", hint=f"Choose another {other} with -o, or overwrite it with --force"
        )
