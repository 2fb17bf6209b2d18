"""Which ranks and devices of a run have a view of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.lifetimes import device_indices, pick_device

if TYPE_CHECKING:
    from gpuledger.analyze.ranks.rank_set import RankSet
    from gpuledger.model.run import Rank

MOST_VIEWS = 8
"""Number of ranks up to which each has a view of its own."""


def choose_devices(ranks: Sequence[Rank], rank_set: RankSet | None) -> list[tuple[Rank, int]]:
    """Return every rank with each of its devices that has a block.

    Of more than :data:`MOST_VIEWS` ranks, returns the highest, those that differ, and one for each set of coordinates.

    Args:
        ranks: The ranks to choose from.
        rank_set: What they have in common; None for a single rank.
    """
    if rank_set is not None and len(ranks) > MOST_VIEWS:
        from gpuledger.analyze.ranks.rank_set import choose_sample

        by_number = {rank.number: rank for rank in ranks}
        sample = [(by_number[rank], device_idx) for rank, device_idx in choose_sample(rank_set, MOST_VIEWS)]
        found = [(rank, device_idx) for rank, device_idx in sample if device_idx in device_indices(rank)]
    else:
        found = [(rank, device_idx) for rank in ranks for device_idx in device_indices(rank)]
    return found


def highest_devices(ranks: Iterable[Rank]) -> list[tuple[Rank, int]]:
    """Return each rank that has a block, with its device that has the highest peak of allocated bytes."""
    return [(rank, pick_device(rank)) for rank in ranks if device_indices(rank)]
