"""Statistics over the blocks of one measurement. Pure, with numpy only.

The unit is a block, not a sample of a sensor: samples within a block are not independent, so their mean would look too
accurate. Outliers are counted, not removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

DRAWS = 500
"""Resamples of the bootstrap, so that the 95 % interval varies by less than a tenth of its width."""
COVERAGE_FRAC = 0.95
MAD_TO_SIGMA = 1.4826
"""Factor from the median absolute deviation to the standard deviation of a normal distribution."""
FAR_SIGMAS = 3.0
DRIFT_LIMIT_FRAC = 0.03
"""Drift of the reference above which the operators since the last reference are measured again."""


@dataclass(frozen=True)
class Spread:
    """Blocks of one quantity, in its unit: the median with a 95 % interval, and the mean within 3 σ."""

    median: float
    low: float
    high: float
    count: int
    outliers: int
    mean_3_sigma: float

    @property
    def half_width_frac(self) -> float:
        """Return half the interval as a share of the median; infinite if the median is 0."""
        return (self.high - self.low) / 2 / self.median if self.median > 0 else float("inf")


@dataclass(frozen=True)
class Drift:
    """Drift of the reference operator: ``worst_frac`` between neighbours, ``total_frac`` from the first to the last."""

    readings: int
    worst_frac: float
    total_frac: float


def summarize(values: Sequence[float]) -> Spread:
    """Return the statistics of one quantity, in its unit.

    Raises:
        ValueError: there are none.
    """
    blocks = np.asarray(values, dtype=np.float64)
    if not len(blocks):
        raise ValueError("no measurements")
    low, high = median_interval(blocks)
    return Spread(float(np.median(blocks)), low, high, len(blocks), count_outliers(blocks), mean_within_3_sigma(blocks))


def median_interval(blocks: Floats, draws: int = DRAWS) -> tuple[float, float]:
    """Return the 95 % interval of the median by bootstrap, deterministic for the same blocks.

    For one block, both ends are its value: the interval is unknown.
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
    """Return the number of blocks more than three scaled median absolute deviations from the median."""
    away = np.abs(blocks - np.median(blocks))
    scale = float(np.median(away)) * MAD_TO_SIGMA
    return int(np.count_nonzero(away > FAR_SIGMAS * scale)) if scale > 0 else 0


def mean_within_3_sigma(blocks: Floats) -> float:
    """Return the mean of the values within three standard deviations of the mean, as in the earlier tool."""
    mean, sigma = float(np.mean(blocks)), float(np.std(blocks))
    kept = blocks[np.abs(blocks - mean) <= FAR_SIGMAS * sigma]
    return float(np.mean(kept)) if len(kept) else mean


def is_enough(values: Sequence[float], target_frac: float, *, least: int, most: int) -> bool:
    """Return whether a measurement can stop: the interval is within ±``target_frac``, or ``most`` blocks are done."""
    if len(values) >= most:
        return True
    return len(values) >= max(least, 2) and summarize(values).half_width_frac <= target_frac


def find_drift(references: Sequence[float]) -> Drift:
    """Return the drift of the reference operator's time."""
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
        references: Median and half interval of each reference measurement. If two intervals overlap, it does not count
            as drift.
        limit_frac: Allowed drift.
    """
    return tuple(
        number
        for number, ((before, one), (after, other)) in enumerate(pairwise(references))
        if abs(after / before - 1) > limit_frac and abs(after - before) > one + other
    )
