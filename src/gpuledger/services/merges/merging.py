"""Combine the runs that several hosts recorded of one job."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gpuledger.analyze.ranks.summaries import complete_summary
from gpuledger.collect.launch.settings import parse_ranks
from gpuledger.errors import UsageError
from gpuledger.model.manifest import write_rank_manifest
from gpuledger.model.run import Rank, Run, read_run
from gpuledger.model.run_directory import SUFFIX, choose_directory
from gpuledger.model.run_manifest import write_run_manifest
from gpuledger.model.run_writer import RunWriter
from gpuledger.services.keeping_events import keep_events
from gpuledger.services.runs import open_run, runs_inside


def merge(
    paths: Sequence[str],
    out: str | None = None,
    *,
    force: bool = False,
    ranks: str = "all",
    ray: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Run:
    """Return one run with the ranks that several hosts recorded of one job. Their runs stay.

    Args:
        paths: The runs, or folders of runs. A path can be a URL.
        out: Name of the new run. None gives it the name of the first run with ``-merged``, numbered.
        force: Replace an existing run.
        ranks: Ranks that keep their allocator events: ``all``, ``sample``, or a list such as ``0,8-11``.
        ray: Address of a Ray cluster that prepares the ranks, ``auto`` for the one of this machine, or ``local`` to
            start one. None prepares them in this process.
        say: Gets what is to be known of the merge, such as why Ray has not prepared a rank. None warns instead.

    Raises:
        InputError: one of them is not a run, or damaged.
        UsageError: two of them have the same rank, ``out`` exists, ``ranks`` is no choice, or Ray cannot be reached.
        OSError: the new run cannot be written; nothing is left.

    Source: each rank's own tables, copied. Missing ones are built from its journal.

    Example:
        >>> import gpuledger
        >>> gpuledger.merge(["host-a/train.ledger", "host-b/train.ledger"], "train")  # doctest: +SKIP
    """
    parse_ranks(ranks)
    say = say or _warn
    unread: list[str] = []
    inputs = [inside for path in paths for inside in runs_inside(path, unread)]
    for text in unread:
        say(text)
    return keep_events(merge_runs(inputs, out, force=force, ray=ray, say=say), ranks)


def merge_runs(
    paths: Sequence[str],
    out: str | None,
    *,
    force: bool = False,
    ray: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Run:
    """Return one run with all ranks of several runs, as :func:`merge` does for runs that are not in folders."""
    if ray is None:
        return _write([open_run(path) for path in paths], out, force=force, place=shutil.copytree)
    from gpuledger.services.merges.on_ray import prepared_runs

    if out is not None:
        choose_directory(out, force=force, stem=out)  # refuses now what it would refuse after all the work
    with prepared_runs(paths, out, ray, say) as (runs, scratch):

        def place(directory: Path, target: Path) -> object:
            return (
                shutil.move(directory, target) if scratch in directory.parents else shutil.copytree(directory, target)
            )

        return _write(runs, out, force=force, place=place)


def _warn(text: str) -> None:
    warnings.warn(f"gpuledger.merge: {text}", stacklevel=4)


def _write(runs: Sequence[Run], out: str | None, *, force: bool, place: Callable[[Path, Path], object]) -> Run:
    """Return one run with the ranks of several. ``place`` brings the directory of each into it."""
    ranks = _ranks_of(runs)
    stem = f"{runs[0].name}-merged"
    path = choose_directory(out, force=force, stem=stem)
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
        name=path.name.removesuffix(SUFFIX),
        notes=tuple(dict.fromkeys(notes)),
        exit_status=failed.exit_status,
        signal=failed.signal,
    )
    made = RunWriter.open(path, replace(manifest, status="running"), replace=force)
    with made.placing():
        for number, rank in ranks.items():
            _place(rank, made.directory / f"rank-{number}", place)
        write_run_manifest(made.directory, manifest)
    return read_run(path)


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


def _place(rank: Rank, directory: Path, place: Callable[[Path, Path], object]) -> None:
    """Bring a rank into a run, with how it ended, and write its summary if it has none."""
    place(rank.directory, directory)
    if rank.manifest.exit_status is not None:
        write_rank_manifest(directory, rank.manifest)
    complete_summary(rank, directory)
