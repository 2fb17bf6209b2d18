"""Give the ranks of a run their numbers in the process group."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuledger.model.manifest import write_rank_manifest
from gpuledger.model.run import Run, read_run
from gpuledger.model.run_directory import RANK_PREFIX

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

_MOVED_PREFIX = "moved-rank-"


def number_ranks(run: Run) -> Run:
    """Return a run after each rank has got its number in the program's process group.

    A program that starts its own processes, for example with ``torch.multiprocessing.spawn``, gives them no number that
    is known when they begin. They have one in the order in which they began. Nothing is changed if a number is unknown,
    or if the ranks are not of one process group, such as those of a restart.

    Raises:
        OSError: a directory cannot be renamed.
    """
    moved = _moved(run)
    if not moved:
        return run
    for number in moved:
        (run.path / f"{RANK_PREFIX}{number}").rename(run.path / f"{_MOVED_PREFIX}{number}")
    for number, rank in moved.items():
        world = rank.manifest.world
        assert world is not None
        place = run.path / f"{RANK_PREFIX}{world.rank}"
        (run.path / f"{_MOVED_PREFIX}{number}").rename(place)
        write_rank_manifest(place, replace(rank.manifest, rank=world.rank))
    return read_run(run.path)


def _moved(run: Run) -> dict[int, Rank]:
    """Return the ranks by their number in the run if it is not that in the process group."""
    worlds = [rank.manifest.world for rank in run.ranks]
    known = {world.rank for world in worlds if world is not None}
    if run.damaged or len(known) < len(worlds) or len({world.size for world in worlds if world is not None}) != 1:
        return {}
    return {
        rank.number: rank
        for rank, world in zip(run.ranks, worlds, strict=True)
        if world is not None and world.rank != rank.number
    }
