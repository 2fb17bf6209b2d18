"""The rank of this process in its run. Creates the run if no parent has done so."""

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
    """Create and return the rank directory of this process.

    The rank is ``RANK`` if a launcher set it and it is free. A second process of the same rank gets a number after the
    last rank of the launcher's world, with a note. Without ``RANK``, it is the first free number. The first process of
    a run without a manifest writes the manifest.

    Raises:
        RunReplacedError: another recording has replaced the run for which this process was started.
        OSError: the directory cannot be created.
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


_begun: list[RunWriter] = []
atexit.register(_end_begun)
"""At import and not in :func:`_begin_run`: a session can create its rank at exit, when it is too late to register."""
