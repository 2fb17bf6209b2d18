"""Combine the runs that several hosts recorded of one job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpuledger.analyze.ranks.summaries import has_summary, summary_tables
from gpuledger.errors import UsageError
from gpuledger.model.manifest import write_rank_manifest
from gpuledger.model.run import Rank, Run, read_run, write_table
from gpuledger.model.run_directory import SUFFIX, choose_directory
from gpuledger.model.run_manifest import write_run_manifest
from gpuledger.model.run_writer import RunWriter
from gpuledger.services.runs import open_run


def merge_runs(paths: Sequence[str], out: str | None, *, force: bool = False) -> Run:
    """Return one run with the ranks of several runs. The runs are not changed.

    Args:
        paths: The runs, one for each host.
        out: Name of the new run. None gives it the name of the first run with ``-merged``, numbered.
        force: Replace an existing run.

    Raises:
        InputError: one of them is not a run, or damaged.
        UsageError: two of them have the same rank, or ``out`` exists.
        OSError: the new run cannot be written; nothing is left.
    """
    runs = [open_run(path) for path in paths]
    ranks = _ranks_of(runs)
    stem = f"{runs[0].name}-merged"
    place = choose_directory(out, force=force, stem=stem)
    notes = [note for run in runs for note in run.manifest.notes]
    if len({tuple(run.manifest.command) for run in runs}) > 1:
        notes.append("The merged runs were recorded with different commands.")
    notes += [f"Rank {number} was left out: {why}." for run in runs for number, why in run.damaged.items()]
    versions = sorted({run.manifest.gpuledger_version or "unknown" for run in runs})
    if len(versions) > 1:
        notes.append(f"The merged runs were recorded with different versions of gpuledger: {', '.join(versions)}.")
    first = runs[0].manifest
    failed = next((run.manifest for run in runs if run.manifest.exit_status), first)
    manifest = replace(
        first,
        run_id=os.urandom(8).hex(),
        name=place.name.removesuffix(SUFFIX),
        notes=tuple(dict.fromkeys(notes)),
        exit_status=failed.exit_status,
        signal=failed.signal,
    )
    made = RunWriter.open(place, replace(manifest, status="running"), replace=force)
    with made.placing():
        for number, rank in ranks.items():
            _copy(rank, made.directory / f"rank-{number}")
        write_run_manifest(made.directory, manifest)
    return read_run(place)


def _ranks_of(runs: Sequence[Run]) -> dict[int, Rank]:
    """Return the ranks of all runs by their number in the job, in order.

    Raises:
        UsageError: two runs have the same rank.
    """
    found: dict[int, Rank] = {}
    places: dict[int, object] = {}
    for run in runs:
        place = run.url or run.path
        for number, rank in _numbered(_with_ends(run)).items():
            if number in found:
                raise UsageError(
                    f"rank {number}: is in {places[number]} and in {place}", hint="Leave one of the two runs out"
                )
            found[number], places[number] = rank, place
    return dict(sorted(found.items()))


def _with_ends(run: Run) -> tuple[Rank, ...]:
    """Return the ranks of a run. The end of a run with one rank is the end of this rank, if that is not known."""
    if len(run.ranks) != 1 or run.ranks[0].manifest.exit_status is not None:
        return run.ranks
    (rank,), of_run = run.ranks, run.manifest
    ended_ns = rank.manifest.ended_ns or of_run.ended_ns
    manifest = replace(rank.manifest, exit_status=of_run.exit_status, signal=of_run.signal, ended_ns=ended_ns)
    return (replace(rank, manifest=manifest),)


def _numbered(ranks: Sequence[Rank]) -> dict[int, Rank]:
    """Return the ranks of one run by their number in the job.

    Source: the program's process group, if it gives each of them a number; else the number in the run. A process that
    records itself, and a process of a host without a launcher's numbers, do not have that of the job in their run.
    """
    of_job = {rank.manifest.world.rank: rank for rank in ranks if rank.manifest.world is not None}
    return of_job if len(of_job) == len(ranks) else {rank.number: rank for rank in ranks}


def _copy(rank: Rank, directory: Path) -> None:
    """Copy a rank with how it ended, and write its summary if it has none."""
    shutil.copytree(rank.directory, directory)
    if rank.manifest.exit_status is not None:
        write_rank_manifest(directory, rank.manifest)
    if not has_summary(rank):
        for name, table in summary_tables(rank).items():
            write_table(directory, table, name)
        rank.forget_columns()
