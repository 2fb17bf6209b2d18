"""Search the largest value that fits, with as few estimates as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuledger.simulate.estimate.fit import FITS
from gpuledger.units import counted

_MOST_GUESSES = 8
"""Trials after which the interval is halved: memory is not a line over this value."""
_MOST_GROWTH = 16


@dataclass(frozen=True)
class Trial:
    """One value that was tried, its memory use, whether it fits, and the upper bound that decides it."""

    value: int
    process_bytes: int | None
    verdict: str
    upper_bytes: int | None = None
    is_uncompiled: bool = False
    """Whether the program uses ``torch.compile``, and was estimated without it."""


@dataclass(frozen=True)
class Search:
    """The largest value that fits (None if not even 1 does), and every value tried, in ascending order."""

    largest: int | None
    trials: tuple[Trial, ...]

    def __repr__(self) -> str:
        found = "nothing fits" if self.largest is None else f"{self.largest:,} fits"
        return f"<Search: {found}, {counted(len(self.trials), 'value')} tried>"


def find_largest(
    try_value: Callable[[int], Trial], start: int, most: int = 1 << 24, usable_bytes: int | None = None
) -> Search:
    """Return the largest whole number above 0 that fits, to one part in 256.

    Memory is nearly a line over a batch size, so two trials predict where it crosses the GPU's memory. Without
    ``usable_bytes``, the value is doubled and then the interval halved.

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


def _next_value(low: int, high: int, most: int, guess: int | None) -> int:
    """Return the next value to try: the guess, or its neighbour if the guess is known to fit or not to fit."""
    step = max(1, low // 256)
    if high > most:
        return min(low * 2 if guess is None else max(min(guess, low * _MOST_GROWTH), low + step), most)
    if guess is None:
        return (low + high) // 2
    return low + step if guess <= low else min(guess, high - step) if high - step > low else (low + high) // 2


def _crossing(trials: Iterable[Trial], usable_bytes: int | None) -> int | None:
    """Return the largest value with an upper bound below the usable bytes, by the two trials nearest to it."""
    if usable_bytes is None:
        return None
    known = [(trial.upper_bytes, trial.value) for trial in trials if trial.upper_bytes is not None]
    nearest = sorted(known, key=lambda point: abs(point[0] - usable_bytes))[:2]
    if len(nearest) < 2:
        return None
    (one_bytes, one), (other_bytes, other) = nearest
    slope = (one_bytes - other_bytes) / (one - other)
    return None if slope <= 0 else int(one + (usable_bytes - one_bytes) / slope)
