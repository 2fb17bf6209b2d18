"""The rank of this process in its run. Creates the run if no parent has done so."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuledger.errors import GpuLedgerError
from gpuledger.model.run_directory import SUFFIX, rank_directories
from gpuledger.model.run_writer import RunWriter, check_run, new_manifest
from gpuledger.processes.identity import identity_of

RANK = "RANK"
"""Set by torchrun, ``accelerate launch``, DeepSpeed's launcher and Ray Train, and by programs themselves."""
_OF_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Rank and number of ranks by Open MPI's mpirun, by that of MPICH and Intel MPI, and by srun."""
PROCESS_ID = "pid"
"""File in a rank's directory with the id, start time and host of its process, for who waits for its end."""
_STARTED_AGAIN = (
    "Rank {number} of this run is the process of rank {earlier}, which has started a program again with exec. Rank "
    "{number} began when rank {earlier} ended."
)
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
"""How often torchrun has started all processes again because one of them failed."""


def claim_rank(run_directory: Path) -> Path:
    """Create and return the rank directory of this process.

    The rank is the launcher's if it is free. A second process of the same rank gets a number after the last rank of the
    launcher's world, with a note. So do processes that torchrun starts again, in the order of their ranks. Without a
    launcher, it is the first free number. The first process of a run without a manifest writes the manifest.

    Raises:
        RunReplacedError: another recording has replaced the run for which this process was started.
        OSError: the directory cannot be created.
    """
    check_launched_run(run_directory)
    if not (run_directory / "manifest.json").exists():
        _begin_run(run_directory)
    variable, wanted, free_from = _launched()
    restarts = _restarts(variable)
    number = wanted + restarts * free_from
    while True:
        directory = run_directory / f"rank-{number}"
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            number = max(number + 1, free_from)
            continue
        own = identity_of(os.getpid())
        earlier = None if number == wanted or run_directory in _claimed else _rank_with(run_directory, own)
        _claimed.add(run_directory)
        if earlier is not None:
            leave_note(run_directory, _STARTED_AGAIN.format(number=number, earlier=earlier))
        elif variable and number != wanted:
            which = f", after restart {restarts} by torchrun" if restarts else ""
            leave_note(run_directory, f"Rank {number} of this run is another process with {variable}={wanted}{which}.")
        (directory / PROCESS_ID).write_text(own)
        return directory


def _rank_with(run_directory: Path, identity: str) -> int | None:
    """Return the last rank that a process has claimed; None if it has claimed none."""
    found = [number for number, place in rank_directories(run_directory) if _read_identity(place) == identity]
    return max(found, default=None)


def _read_identity(place: Path) -> str:
    try:
        return (place / PROCESS_ID).read_text()
    except OSError:  # it is being written
        return ""


def name_of_process(name: str) -> str:
    """Return the name of a run that this process alone records, different from those of the launcher's other ranks.

    Without a launcher of several ranks, it is ``name``: the name of a run, with or without its suffix, or a URL.
    """
    variable, rank, world = _launched()
    if world < 2:
        return name
    restarts = _restarts(variable)
    stem = name.rstrip("/").removesuffix(SUFFIX)
    return f"{stem}-rank-{rank}" + (f"-restart-{restarts}" if restarts else "")


def launched_rank() -> int | None:
    """Return the launcher's rank of this process; None without a launcher of several ranks."""
    _, rank, world = _launched()
    return rank if world > 1 else None


def launched_ranks() -> int | None:
    """Return the launcher's number of ranks; None without a launcher of several ranks."""
    _, _, world = _launched()
    return world if world > 1 else None


def _launched() -> tuple[str, int, int]:
    """Return the launcher's variable, rank and number of ranks; "", 0 and 0 without a launcher of several ranks."""
    rank, world = os.environ.get(RANK, ""), os.environ.get("WORLD_SIZE", "")
    if rank.isdecimal():
        return RANK, int(rank), int(world) if world.isdecimal() else 0
    for name, of_world in _OF_LAUNCHERS:
        rank, world = os.environ.get(name, ""), os.environ.get(of_world, "")
        if rank.isdecimal() and world.isdecimal() and int(rank) < int(world) and int(world) > 1:
            return name, int(rank), int(world)
    return "", 0, 0


def _restarts(variable: str) -> int:
    """Return how often torchrun has started this job again; 0 if it did not start this process."""
    count = os.environ.get(_RESTARTS, "")
    return int(count) if variable == RANK and count.isdecimal() else 0


def check_launched_run(run_directory: Path) -> None:
    """Check that a run is the one for which this process was started. Does nothing if no launcher started it.

    Raises:
        RunReplacedError: another recording has replaced the run.
    """
    run_id, _, place = os.environ.get("GPULEDGER_RUN_ID", "").partition(" ")
    if run_id and Path(place) == run_directory:  # a program can select another run for its own child processes
        check_run(run_directory, run_id)


def leave_note(run_directory: Path, text: str) -> None:
    """Write a note to the file of the run that the parent process reads."""
    directory = run_directory / "notes"
    directory.mkdir(exist_ok=True)
    with (directory / f"{os.getpid()}.txt").open("a", encoding="utf-8") as stream:
        stream.write(text + "\n")


def _begin_run(run_directory: Path) -> None:
    """Write the manifest of a run that only ``GPULEDGER_RUN`` names, unless another process has written it."""
    settings: dict[str, tuple[Any, str]] = {
        name.lower(): (os.environ[f"GPULEDGER_{name}"], "environment")
        for name in ("STEPS", "PASSES", "STACKS", "DEVICES")
        if os.environ.get(f"GPULEDGER_{name}")
    }
    run = RunWriter.open_shared(run_directory, new_manifest(run_directory.name, sys.orig_argv, settings))
    if run is not None:
        _begun.append(run)


def _end_begun() -> None:
    """Record that the process which created the run has ended. Its exit status is unknown."""
    for run in _begun:
        with suppress(OSError, GpuLedgerError):  # the run is missing or the disk is full: its status remains "running"
            if run.is_of_this_process:
                run.close()


_claimed: set[Path] = set()
"""Runs in which the program of this process has a rank. One that the process starts with ``exec`` knows of none."""
_begun: list[RunWriter] = []
atexit.register(_end_begun)
"""At import and not in :func:`_begin_run`: a session can create its rank at exit, when it is too late to register."""
