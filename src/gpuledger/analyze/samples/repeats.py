"""Repeated runs of one command: group them, and compute the range between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from gpuledger.analyze.samples.series import F64, Series
    from gpuledger.model.run import Run

Value = TypeVar("Value")


def repeat_of(run: Run) -> tuple[int, str] | None:
    """Return series and variant, which all repeats of a run share; None if the run was not repeated."""
    name, series_ns = run.manifest.repeat_of, run.manifest.series_ns
    return None if name is None or series_ns is None else (series_ns, name)


def gathered(values: Sequence[tuple[tuple[object, ...], Value]]) -> list[list[Value]]:
    """Return the values grouped by key, in the order in which each key first occurs."""
    found: dict[tuple[object, ...], list[Value]] = {}
    for key, value in values:
        found.setdefault(key, []).append(value)
    return list(found.values())


def middle_of(repeats: Sequence[Series]) -> Series:
    """Return the repeat with the median peak, with the lowest and highest value of all repeats at each time.

    A mean would hide the peaks, because they are at different times in different runs.
    """
    middle = sorted(repeats, key=lambda one: one.peak[1])[(len(repeats) - 1) // 2]
    bounds = [_bounds(one, middle.t_s) for one in repeats]
    low = np.fmin.reduce([bound[0] for bound in bounds])
    high = np.fmax.reduce([bound[1] for bound in bounds])
    return replace(middle, low=low, high=high, repeats=len(repeats))


def _bounds(one: Series, t_s: F64) -> tuple[F64, F64]:
    """Return the lowest and highest value in each interval; NaN before the run starts and after it ends.

    A value holds until the next one.
    """
    last = np.searchsorted(one.t_s, t_s, side="right") - 1
    at = np.where((last >= 0) & (t_s <= one.t_s[-1]), one.values[last], np.nan)
    low, high = at.copy(), at.copy()
    place = np.searchsorted(t_s, one.t_s, side="right") - 1
    inside = (place >= 0) & (one.t_s <= t_s[-1])
    np.fmin.at(low, place[inside], one.values[inside])
    np.fmax.at(high, place[inside], one.values[inside])
    return low, high
