"""Which rank of a run this process is, and the run itself where no parent has made it."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuledger.errors import GpuLedgerError
from gpuledger.model.run_writer import RunWriter, check_run, new_manifest


def claim_rank(run_directory: Path) -> Path:
    """Return the rank directory of this process, made now.

    ``RANK`` where a launcher set it and that is free; a second process of the same rank comes after the last rank of
    the launcher's world, with a note. Without ``RANK`` the first free number. The first process of a run that nobody
    has begun begins it.

    Raises:
        RunReplacedError: another recording has taken the place of the run that this process was started for.
        OSError: the directory cannot be made.
    """
    check_launched_run(run_directory)
    if not (run_directory / "manifest.json").exists():
        _begin_run(run_directory)
    wanted = os.environ.get("RANK", "")
    world = os.environ.get("WORLD_SIZE", "")
    number = first = int(wanted) if wanted.isdecimal() else 0
    free_from = int(world) if wanted.isdecimal() and world.isdecimal() else 0
    while True:
        directory = run_directory / f"rank-{number}"
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            number = max(number + 1, free_from)
            continue
        if wanted.isdecimal() and number != first:
            leave_note(run_directory, f"Rank {number} of this run is another process with RANK={first}.")
        return directory


def check_launched_run(run_directory: Path) -> None:
    """Do nothing where a run is the one that this process was started for, or where no launcher said which that is.

    Raises:
        RunReplacedError: another recording has taken its place.
    """
    run_id, _, place = os.environ.get("GPULEDGER_RUN_ID", "").partition(" ")
    if run_id and Path(place) == run_directory:  # a program may name another run for processes of its own
        check_run(run_directory, run_id)


def leave_note(run_directory: Path, text: str) -> None:
    """Tell the run, through the file that is its parent's to read."""
    directory = run_directory / "notes"
    directory.mkdir(exist_ok=True)
    with (directory / f"{os.getpid()}.txt").open("a", encoding="utf-8") as stream:
        stream.write(text + "\n")


def _begin_run(run_directory: Path) -> None:
    """Write the manifest of a run that ``GPULEDGER_RUN`` alone asked for, unless another process was quicker."""
    settings: dict[str, tuple[Any, str]] = {
        name.lower(): (os.environ[f"GPULEDGER_{name}"], "environment")
        for name in ("STEPS", "PASSES", "STACKS", "DEVICES")
        if os.environ.get(f"GPULEDGER_{name}")
    }
    run = RunWriter.open_shared(run_directory, new_manifest(run_directory.name, sys.orig_argv, settings))
    if run is not None:
        _begun.append(run)


def _end_begun() -> None:
    """Say that the process which began a run has ended; its exit status nobody knows."""
    for run in _begun:
        with suppress(OSError, GpuLedgerError):  # the run is gone or the disk is full: it stays "running"
            if run.is_of_this_process:
                run.close()


_begun: list[RunWriter] = []
atexit.register(_end_begun)
"""Here and not in :func:`_begin_run`: a session may claim its rank at exit, when it is too late to register."""
