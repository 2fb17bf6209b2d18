"""Search the largest value that fits, with as few estimates as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.simulate.estimate.fit import FITS
from gpuledger.units import counted

if TYPE_CHECKING:
    from gpuledger.simulate.estimate.run import Estimate

MOST = 1 << 24
"""Largest value that is tried."""
_MOST_GUESSES = 8
"""Trials after which the interval is halved: memory is not a line over this value."""
_MOST_GROWTH = 16
_APART = 16
"""Values are compared that differ by at least this part of one of them."""
_KEPT = ("weight", "gradient", "optimizer_state")
"""Categories of memory that do not depend on a batch's size."""


@dataclass(frozen=True)
class Trial:
    """One value that was tried, its memory use, whether it fits, and the upper bound that decides it."""

    value: int
    process_bytes: int | None
    verdict: str
    upper_bytes: int | None = None
    is_uncompiled: bool = False
    """Whether the program uses ``torch.compile``, and was estimated without it."""
    least_bytes: int = 0
    """Part of the upper bound that is expected to be the same for smaller and larger values."""
    grows: bool = False
    """Whether memory grows for an unknown number of steps. Then the verdict is of the simulated steps."""

    @classmethod
    def of(cls, value: int, found: Estimate) -> Trial:
        """Return the trial of a value that was estimated."""
        least_bytes = int(_kept_bytes(found) * found.upper_bytes / found.peak_process_bytes)
        return cls(
            value,
            found.peak_process_bytes,
            FITS if found.fit.fits_so_far else found.fit.verdict,
            found.upper_bytes,
            bool(found.uncompiled),
            least_bytes,
            found.fit.full_after_steps is not None,
        )


@dataclass(frozen=True)
class Search:
    """The largest value that fits (None if not even 1 does), and every value tried, in ascending order."""

    largest: int | None
    trials: tuple[Trial, ...]

    def __repr__(self) -> str:
        found = "nothing fits" if self.largest is None else f"{self.largest:,} fits"
        return f"<Search: {found}, {counted(len(self.trials), 'value')} tried>"


def find_largest(
    try_value: Callable[[int], Trial], start: int, most: int = MOST, usable_bytes: int | None = None
) -> Search:
    """Return the largest whole number above 0 that fits, to one part in 256.

    Memory is nearly a line over a batch size, so two trials predict where it crosses the GPU's memory. The first one
    predicts it with the bytes that do not depend on the value. The result was tried, and so was the next larger value.
    Without ``usable_bytes``, the value is doubled and then the interval halved.

    Args:
        try_value: Returns whether a value fits. If a value does not fit, no larger one may fit.
        start: First value to try.
        most: Upper limit of the search.
        usable_bytes: Bytes of the GPU that a process can use.
    """
    tried: dict[int, Trial] = {}
    low, high, value = 0, most + 1, min(max(start, 1), most)
    while high - low > max(1, low // 256):
        tried[value] = try_value(value)
        if tried[value].verdict == FITS:
            low = value
        else:
            high = value
        guess = None if len(tried) > _MOST_GUESSES else _crossing(tried.values(), usable_bytes)
        value = _next_value(low, high, most, guess)
    return Search(low or None, tuple(tried[value] for value in sorted(tried)))


def _kept_bytes(found: Estimate) -> int:
    """Return the process's bytes at the peak that do not depend on the batch, context and libraries included."""
    rank = found.run.rank(found.rank)
    accounts = break_down(rank, find_peak(rank), by=("category",)).accounts
    return found.card.outside_bytes + sum(account.bytes for account in accounts if account.category in _KEPT)


def _next_value(low: int, high: int, most: int, guess: int | None) -> int:
    """Return the next value to try: the guess, or its neighbour if the guess is known to fit or not to fit."""
    step = max(1, low // 256)
    if high > most:
        return min(low * 2 if guess is None else max(min(guess, low * _MOST_GROWTH), low + step), most)
    if guess is None:
        return (low + high) // 2
    return low + step if guess <= low else min(guess, high - step) if high - step > low else (low + high) // 2


def _crossing(trials: Iterable[Trial], usable_bytes: int | None) -> int | None:
    """Return the largest value with an upper bound below the usable bytes, by the trial nearest to it and another one.

    The allocator's steps hide the slope between neighbours, so the other trial is some way off. A first trial is
    compared with its bytes that do not depend on the value.
    """
    if usable_bytes is None:
        return None
    known = [(trial, trial.upper_bytes) for trial in trials if trial.upper_bytes is not None]
    points = [(size, trial.value) for trial, size in sorted(known, key=lambda one: abs(one[1] - usable_bytes))]
    points += [(trial.least_bytes, 0) for trial, _ in known if trial.least_bytes]
    if not points:
        return None
    (one_bytes, one), *others = points
    apart = [point for point in others if abs(point[1] - one) * _APART >= one]
    if not apart:
        return None
    other_bytes, other = apart[0]
    slope = (one_bytes - other_bytes) / (one - other)
    return None if slope <= 0 else int(one + (usable_bytes - one_bytes) / slope)
