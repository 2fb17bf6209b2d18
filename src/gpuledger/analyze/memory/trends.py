"""Steady rises of a floor: the lowest value of each part of the later steps is above the one before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
PARTS = 8
FEWEST_STEPS = 24
_STEADY_FRAC = 0.4
"""Smallest gain of a part, relative to the median gain."""
_STILL_FRAC = 0.6
"""Smallest mean gain of the later parts, relative to that of the earlier ones."""
_STILL_LATE_FRAC = 0.8
"""The same for a rise of the last steps only. What fills ever slower looks steadier there."""


@dataclass(frozen=True)
class Trend:
    """A steady rise of a floor: amount per step, first step of the rise, and the rise in total."""

    per_step: float
    since_step: int
    total: float


def rising(steps: F64, values: F64, count: int = PARTS, fewest: int = FEWEST_STEPS) -> Trend | None:
    """Return the steady rise of a floor until the last step; None if it does not rise, or there are too few steps.

    Looks at the last three quarters of the steps, and then at fewer of them, because memory can begin to grow late. A
    late rise must lead above everything before it, which what a program keeps for an epoch does only once.

    Args:
        steps: Ascending step numbers.
        values: Values at the ends of these steps; NaN where not known.
        count: Number of parts with a floor each; fewer if there are fewer steps.
        fewest: Smallest number of steps.
    """
    known = ~np.isnan(values)
    steps, values = steps[known], values[known]
    if steps.size < fewest:
        return None
    found = _rising_from(steps, values, steps.size // 4, count, _STILL_FRAC)
    for later in (steps.size // 2, 3 * steps.size // 4):
        if found is None and steps.size - later >= fewest:
            found = _rising_from(steps, values, later, count, _STILL_LATE_FRAC)
            floor = values[-max((steps.size - later) // count, 1) :].min()
            if found is not None and floor <= values[:later].max():
                found = None
    return found


def _rising_from(steps: F64, values: F64, later: int, count: int, still_frac: float) -> Trend | None:
    """Return the steady rise of the floor from position ``later`` on."""
    if steps.size - later < 2 * count:  # parts of one and of two steps could not be compared
        later = max(later, steps.size - count)
        count = steps.size - later
    parts = np.array_split(np.arange(later, steps.size), count)
    floors = np.array([values[part].min() for part in parts])
    gains = np.diff(floors)
    typical = float(np.median(gains))
    half = max(gains.size // 2, 1)
    slows_down = gains[-half:].mean() < still_frac * gains[:half].mean()
    if typical <= 0 or gains.min() < _STEADY_FRAC * typical or slows_down:
        return None
    lowest = [part[int(values[part].argmin())] for part in (parts[0], parts[-1])]
    per_step = float((floors[-1] - floors[0]) / (steps[lowest[1]] - steps[lowest[0]]))
    begin = _begin_of(values, lowest[0], parts[0], _STEADY_FRAC * typical)
    return Trend(per_step, int(steps[begin]), per_step * float(steps[-1] - steps[begin]))


def _begin_of(values: F64, lowest: int, first: NDArray[np.int64], least: float) -> int:
    """Return the position at which a rise began: the first of the parts before it that gain ``least`` or more."""
    begin, end = lowest, int(first[0])
    while end:
        length = min(first.size, end)
        before = end - length + int(values[end - length : end].argmin())
        if values[begin] - values[before] < least * length / first.size:
            break
        begin, end = before, end - length
    return begin
