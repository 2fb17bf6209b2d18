"""Combine the runs that several hosts recorded of one job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpuledger.analyze.ranks.summaries import has_summary, summary_tables
from gpuledger.errors import UsageError
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
    first = runs[0].manifest
    manifest = replace(
        first, run_id=os.urandom(8).hex(), name=place.name.removesuffix(SUFFIX), notes=tuple(dict.fromkeys(notes))
    )
    made = RunWriter.open(place, replace(manifest, status="running"), replace=force)
    with made.placing():
        for rank in ranks:
            _copy(rank, made.directory / rank.directory.name)
        write_run_manifest(made.directory, manifest)
    return read_run(place)


def _ranks_of(runs: Sequence[Run]) -> list[Rank]:
    """Return the ranks of all runs in order.

    Raises:
        UsageError: two runs have the same rank.
    """
    found: dict[int, Rank] = {}
    for run in runs:
        for rank in run.ranks:
            if rank.number in found:
                raise UsageError(
                    f"rank {rank.number}: is in {found[rank.number].directory.parent} and in {run.path}",
                    hint="Leave one of the two runs out",
                )
            found[rank.number] = rank
    return [found[number] for number in sorted(found)]


def _copy(rank: Rank, directory: Path) -> None:
    """Copy a rank, and write its summary if it has none."""
    shutil.copytree(rank.directory, directory)
    if not has_summary(rank):
        for name, table in summary_tables(rank).items():
            write_table(directory, table, name)
        rank.forget_columns()
