"""Several ranks and devices side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.files.reading import MIB

if TYPE_CHECKING:
    from gpuledger.analyze.overview.summary import Summary
    from gpuledger.analyze.ranks.reading import RankLine

LEAST_FRAC, LEAST_BYTES = 0.02, MIB
"""Memory of ranks differs if the difference is more than this share of what ranks usually have, and these bytes."""


def differs(size_bytes: int, usual_bytes: float) -> bool:
    """Return whether memory of a rank differs from what ranks usually have: by more than 2 % and 1 MiB."""
    return abs(size_bytes - usual_bytes) > max(LEAST_FRAC * usual_bytes, LEAST_BYTES)


@dataclass(frozen=True)
class Imbalance:
    """The highest allocated peak of several devices relative to their mean, which is ``ratio`` times lower."""

    rank: int
    device_idx: int
    highest_bytes: int
    mean_bytes: float
    ratio: float

    @property
    def is_balanced(self) -> bool:
        """Return whether the highest peak is near the mean, by the rule for all differences between ranks."""
        return not differs(self.highest_bytes, self.mean_bytes)


def find_imbalance(summaries: Sequence[Summary | RankLine]) -> Imbalance | None:
    """Return the highest allocated peak and its ratio to the mean; None if there is nothing to compare.

    GPUs are compared with GPUs; CPU tensors only if there is no GPU.
    """
    cards = [summary for summary in summaries if summary.device_idx >= 0]
    compared = cards or summaries
    if len(compared) < 2:
        return None
    highest = max(compared, key=lambda summary: summary.recorded_peak_allocated_bytes)
    mean_bytes = sum(summary.recorded_peak_allocated_bytes for summary in compared) / len(compared)
    ratio = highest.recorded_peak_allocated_bytes / mean_bytes if mean_bytes else 1.0
    return Imbalance(highest.rank, highest.device_idx, highest.recorded_peak_allocated_bytes, mean_bytes, ratio)
