"""Statistics over the blocks of one measurement: pure, numpy alone.

The unit is a block, never a reading of a sensor: readings of one block repeat each other, and a mean over them looks
far surer than it is. Nothing is thrown away; what lies far out is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

DRAWS = 500
"""Resamples of a bootstrap: the ends of a 95 % interval then move by less than a tenth of its width."""
COVERAGE_FRAC = 0.95
MAD_TO_SIGMA = 1.4826
"""Makes the median absolute deviation of a normal distribution its standard deviation."""
FAR_SIGMAS = 3.0
DRIFT_LIMIT_FRAC = 0.03
"""A reference that moved by more asks for the operators since the last one to be measured again."""


@dataclass(frozen=True)
class Spread:
    """Blocks of one quantity, in its unit: the median with a 95 % interval, and the ancestor's mean beside it."""

    median: float
    low: float
    high: float
    count: int
    outliers: int
    mean_3_sigma: float

    @property
    def half_width_frac(self) -> float:
        """Return half the interval as a share of the median; infinite where the median is nothing."""
        return (self.high - self.low) / 2 / self.median if self.median > 0 else float("inf")


@dataclass(frozen=True)
class Drift:
    """How a reference operator moved: ``worst_frac`` between neighbours, ``total_frac`` from the first to the last."""

    readings: int
    worst_frac: float
    total_frac: float


def summarize(values: Sequence[float]) -> Spread:
    """Return what blocks say of one quantity, in its unit.

    Raises:
        ValueError: there are none.
    """
    blocks = np.asarray(values, dtype=np.float64)
    if not len(blocks):
        raise ValueError("no measurements")
    low, high = median_interval(blocks)
    return Spread(float(np.median(blocks)), low, high, len(blocks), count_outliers(blocks), mean_within_3_sigma(blocks))


def median_interval(blocks: Floats, draws: int = DRAWS) -> tuple[float, float]:
    """Return the ends of the median's 95 % interval by the bootstrap; the same blocks always give the same.

    One block gives itself: its interval is not known, and whoever asks has to ask for more blocks.
    """
    if len(blocks) == 1:
        return float(blocks[0]), float(blocks[0])
    picks = np.random.default_rng(len(blocks)).integers(0, len(blocks), (draws, len(blocks)))
    medians = np.median(blocks[picks], axis=1)
    tail = (1 - COVERAGE_FRAC) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    middle = float(np.median(blocks))
    return min(float(low), middle), max(float(high), middle)


def count_outliers(blocks: Floats) -> int:
    """Return how many blocks lie more than three scaled median absolute deviations from the median."""
    away = np.abs(blocks - np.median(blocks))
    scale = float(np.median(away)) * MAD_TO_SIGMA
    return int(np.count_nonzero(away > FAR_SIGMAS * scale)) if scale > 0 else 0


def mean_within_3_sigma(blocks: Floats) -> float:
    """Return the ancestor's figure: the mean of what lies within three standard deviations of the mean."""
    mean, sigma = float(np.mean(blocks)), float(np.std(blocks))
    kept = blocks[np.abs(blocks - mean) <= FAR_SIGMAS * sigma]
    return float(np.mean(kept)) if len(kept) else mean


def is_enough(values: Sequence[float], target_frac: float, *, least: int, most: int) -> bool:
    """Return whether a measurement can stop: the interval is within ±``target_frac``, or ``most`` blocks are done."""
    if len(values) >= most:
        return True
    return len(values) >= max(least, 2) and summarize(values).half_width_frac <= target_frac


def find_drift(references: Sequence[float]) -> Drift:
    """Return how the reference operator's time moved over a campaign."""
    if len(references) < 2:
        return Drift(len(references), 0.0, 0.0)
    times = np.asarray(references, dtype=np.float64)
    steps = np.abs(times[1:] / times[:-1] - 1)
    return Drift(len(times), float(steps.max()), float(times[-1] / times[0] - 1))


def drifted_sections(
    references: Sequence[tuple[float, float]], limit_frac: float = DRIFT_LIMIT_FRAC
) -> tuple[int, ...]:
    """Return the numbers of the sections between two references that differ by more than ``limit_frac``.

    Args:
        references: The reference's median each time, and half its interval: where the intervals of two meet, nobody
            can tell that it drifted.
        limit_frac: What is let pass.
    """
    return tuple(
        number
        for number, ((before, one), (after, other)) in enumerate(pairwise(references))
        if abs(after / before - 1) > limit_frac and abs(after - before) > one + other
    )
