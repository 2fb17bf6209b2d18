"""What happened when nothing, or not everything asked for, was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

UNBOUNDED_STEP = 1 << 31
"""A last step from here on means: record to the end."""


def why_empty(ranks: Sequence[Rank]) -> str:
    """Return what happened when nothing was recorded, and which steps were not reached."""
    if not ranks:
        return "no process of the program used torch"
    reasons = [reason for rank in ranks if (reason := steps_not_reached(rank))]
    if reasons:
        return reasons[0]
    if all("window" not in rank.manifest and len(rank.table("samples", ("t_ns",))) for rank in ranks):
        return "it holds readings of a card: gpuledger plot RUN draws them, gpuledger compare RUN sums them up"
    return "no tensor was allocated while recording"


def steps_not_reached(rank: Rank) -> str | None:
    """Return which of the steps asked for did not happen; None when all did."""
    asked = (rank.manifest.get("window") or {}).get("asked") or []
    seen = int(rank.manifest.get("steps_seen") or 0)
    if len(asked) != 2 or asked[1] is None or asked[1] >= UNBOUNDED_STEP or seen >= asked[1]:
        return None
    first = max(int(asked[0]), seen + 1)
    missing = f"step {first} was" if first == asked[1] else f"steps {first} to {asked[1]} were"
    return f"{missing} not reached: the program ended after {seen} step{'' if seen == 1 else 's'}"
