"""One run for the ranks of a job that each record themselves, as with ``gpuledger.record(out=NAME)`` below torchrun."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpuledger.collect.launch.ranks import launched_rank
from gpuledger.errors import InputError, UsageError
from gpuledger.model.run_directory import RANK_PREFIX, SUFFIX, rank_directories
from gpuledger.model.run_manifest import read_run_manifest
from gpuledger.model.run_writer import RunWriter
from gpuledger.processes.identity import identity_of

_OF_JOB = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMI_JOBID")


@dataclass(frozen=True)
class OwnPlace:
    """The run of a process that records itself, the directory of its rank, and whether it created the run."""

    writer: RunWriter
    rank_directory: Path
    is_creator: bool


def open_own_run(out: str | None, *, force: bool, stem: str) -> OwnPlace:
    """Return the place for the recording of this process. Ranks of one job that give ``out`` share a run.

    Raises:
        UsageError: ``out`` exists and ``force`` is False, this rank has already recorded into it, or it is not a run.
        OSError: it cannot be written.
    """
    rank = launched_rank()
    if out is None or rank is None:
        return OwnPlace(writer := _choose(out, force, stem), writer.path / f"{RANK_PREFIX}0", is_creator=True)
    path = Path(out if out.endswith(SUFFIX) else out + SUFFIX).absolute()
    job = _job()
    path.parent.mkdir(parents=True, exist_ok=True)
    with one_rank_at_a_time(path.parent):
        joined = _join(path, job, rank, force=force)
        if joined is not None:
            return joined
        writer = _choose(out, force, stem)
        writer.name_job(job)
        own = writer.path / f"{RANK_PREFIX}{rank}"
        own.mkdir()
        return OwnPlace(writer, own, is_creator=True)


def _choose(out: str | None, force: bool, stem: str) -> RunWriter:
    return RunWriter.choose(out, force=force, stem=stem, of_this_process=True)


def _join(path: Path, job: str, rank: int, *, force: bool) -> OwnPlace | None:
    """Return this rank's place in a run that another rank of its job has created; None if there is none.

    Raises:
        UsageError: this rank has already recorded into it, and so have others.
    """
    try:
        found = read_run_manifest(path)
    except InputError:
        return None
    if found.run_id is None or not _is_same_job(found.job, job):
        return None
    own = path / f"{RANK_PREFIX}{rank}"
    try:
        own.mkdir()
    except FileExistsError:
        if len(rank_directories(path)) < 2:
            return None  # one rank alone records, again
        raise UsageError(
            f"{path.name}: rank {rank} has already recorded into it", hint="Choose another name for each recording"
        ) from None
    return OwnPlace(RunWriter(path, path, found.run_id), own, is_creator=False)


def _job() -> str:
    """Return what the processes of one job have in common, then the host and its launcher."""
    common = " ".join(os.environ.get(name, "-") for name in _OF_JOB)
    launcher, _, host = identity_of(os.getppid()).rpartition(" ")
    return f"{common}|{host}|{launcher}"


def _is_same_job(one: str | None, other: str) -> bool:
    """Return whether two processes are of one job. On the same host, they have the same launcher."""
    if one is None or one.count("|") != 2:
        return False
    (common, host, launcher), (common_2, host_2, launcher_2) = one.split("|"), other.split("|")
    return common == common_2 and (host != host_2 or launcher == launcher_2)


@contextmanager
def one_rank_at_a_time(directory: Path) -> Iterator[None]:
    """Let one rank at a time find, create or post a run in ``directory``. A file system without locks cannot do that.

    Does nothing without a launcher of several ranks, or without the directory.
    """
    if launched_rank() is None or not directory.is_dir():
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
