"""Confidence interval of the difference of two means, by Welch's t-test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

_STEPS, _TINY = 300, 1e-300


@dataclass(frozen=True)
class Interval:
    """A difference of two means, and the bounds of its confidence interval."""

    delta: float
    low: float
    high: float

    @property
    def is_significant(self) -> bool:
        """Return whether the interval does not contain 0."""
        return self.low > 0 or self.high < 0

    def at_least(self, half: float) -> Interval:
        """Return the interval, widened to ``half`` on either side if it is narrower."""
        return Interval(self.delta, min(self.low, self.delta - half), max(self.high, self.delta + half))


def difference(before: Sequence[float], after: Sequence[float], confidence: float) -> Interval:
    """Return the mean of ``after`` minus that of ``before``, with its confidence interval.

    Both have at least two values.

    Source: Welch's t-interval: the groups are independent, and their variances can differ.
    """
    delta = fmean(after) - fmean(before)
    parts = [variance(values) / len(values) for values in (before, after)]
    whole = sum(parts)
    if whole == 0:
        return Interval(delta, delta, delta)
    counts = (len(before), len(after))
    freedom = 1 / sum((part / whole) ** 2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    half = t_quantile((1 + confidence) / 2, freedom) * math.sqrt(whole)
    return Interval(delta, delta - half, delta + half)


def t_quantile(share: float, freedom: float) -> float:
    """Return the value below which ``share`` (0.5 or more) of Student's t with ``freedom`` degrees of freedom lies."""
    low, high = 0.0, 1.0
    while _t_share(high, freedom) < share:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _t_share(middle, freedom) < share else (low, middle)
    return high


def _t_share(value: float, freedom: float) -> float:
    """Return the share of Student's t below ``value``, which is 0 or more."""
    return 1 - _beta_share(freedom / (freedom + value * value), freedom / 2, 0.5) / 2


def _beta_share(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_share(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _continued_fraction(x, a, b) / a


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            found *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return found


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
