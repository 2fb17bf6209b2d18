"""Explain why nothing was recorded, or less than requested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuledger.units import counted

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

STILL_WRITTEN = "The run is still being written, or its recorder was killed. Its values are those so far."
"""Note on a run that is not complete."""
UNBOUNDED_STEP = 1 << 31
"""A last step from here on means that the recording has no end."""


def why_empty(ranks: Sequence[Rank]) -> str:
    """Return why nothing was recorded, and which steps were not reached."""
    if not ranks:
        return "no process of the program used PyTorch"
    reasons = [reason for rank in ranks if (reason := steps_not_reached(rank))]
    if reasons:
        return reasons[0]
    if all(rank.manifest.window is None and len(rank.table("samples", ("t_ns",))) for rank in ranks):
        return (
            "it has only samples of a GPU; draw them with gpuledger plot RUN, or sum them up with gpuledger compare RUN"
        )
    if any(len(rank.table("rank_summary", ("device_idx",))) for rank in ranks):
        return "only its summary was kept (--ranks); gpuledger show RUN has it"
    return "no tensor was allocated during the recording"


def because(reason: str, problems: Sequence[str]) -> str:
    """Return why nothing was recorded, followed by what went wrong on some ranks, which are sentences."""
    return " ".join([f"{reason.removesuffix('.')}.", *problems]) if problems else reason


def steps_not_reached(rank: Rank) -> str | None:
    """Return which of the requested steps did not run; None if all did."""
    asked = (rank.manifest.window.asked if rank.manifest.window else None) or ()
    seen = rank.manifest.steps_seen or 0
    first, last = asked if len(asked) == 2 else (None, None)
    if first is None or last is None or last >= UNBOUNDED_STEP or seen >= last:
        return None
    first = max(first, seen + 1)
    missing = f"step {first} was" if first == last else f"steps {first} to {last} were"
    ended = f"the program ended after {counted(seen, 'step')}" if seen else "no step was seen"
    return f"{missing} not reached: {ended}"
