"""Keep the events of some ranks of a run, and summaries of all of them."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import suppress

from gpuledger.analyze.ranks.rank_set import build_rank_set, choose_sample
from gpuledger.analyze.ranks.summaries import has_summary
from gpuledger.collect.launch.settings import ALL_RANKS, parse_ranks
from gpuledger.model.journal.extent import JOURNAL_DIRECTORY
from gpuledger.model.run import Run, read_run

MOST_SAMPLED = 64
"""Maximum number of ranks of a sample, apart from ranks that failed."""
OF_EVENTS = (JOURNAL_DIRECTORY, "blocks", "block_parts", "segments", "stacks")
"""Directories of a rank with its allocator events."""


def keep_events(run: Run, which: str) -> Run:
    """Return a run after removing the events of the ranks that are not chosen. Their summaries stay.

    A sample is the highest rank, the ranks that differ, one rank for each set of coordinates, and ranks that failed.
    The events of a rank without a summary are never removed.

    Raises:
        UsageError: ``which`` is no choice of ranks.
        OSError: events cannot be removed.
    """
    chosen = parse_ranks(which)
    if chosen == ALL_RANKS or len(run.ranks) < 2:
        return run
    kept = _sample(run) if isinstance(chosen, str) else chosen
    for rank in run.ranks:
        if rank.number not in kept and has_summary(rank):
            rank.forget_columns()
            for name in OF_EVENTS:
                with suppress(FileNotFoundError):
                    shutil.rmtree(rank.directory / name)
    return read_run(run.path)


def _sample(run: Run) -> Collection[int]:
    """Return the numbers of the ranks of a sample; all ranks if they cannot be compared."""
    ranks = build_rank_set(run)
    if ranks is None:
        return {rank.number for rank in run.ranks}
    sampled = {number for number, _ in choose_sample(ranks, MOST_SAMPLED)}
    failed = {one.rank for one in ranks.failed} | {rank.number for rank in run.ranks if rank.manifest.oom}
    return sampled | failed | {rank.number for rank in run.ranks if rank.manifest.status == "cut off"}
