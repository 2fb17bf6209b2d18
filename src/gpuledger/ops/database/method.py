"""How operators are measured: every choice in one value, written beside each figure that it gave."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

L2_ROUNDS = 3
"""Inputs rotate through copies of at least so many times the cache."""
MEMORY_FRAC = 0.25
"""The copies take at most this share of the memory that is free."""
REFERENCE_EVERY = 20
BASE_EVERY = 10
"""The power of the waiting GPU is read again after so many operators with energy."""


class Mode(StrEnum):
    """What the cache holds of an operator's inputs: what it just used, or nothing."""

    HOT = "hot"
    ROTATING = "rotating"


class How(StrEnum):
    """How calls reach the device."""

    GRAPH = "graph"
    EAGER = "eager"
    CPU = "cpu"


@dataclass(frozen=True)
class Method:
    """How one quantity is measured. ``_ns`` and ``_s`` are durations, ``target_frac`` half the asked interval."""

    target_frac: float = 0.01
    energy: bool = True
    modes: tuple[Mode, ...] = (Mode.ROTATING, Mode.HOT)
    seed: int = 0
    warm_up_ns: int = 20_000_000
    block_ns: int = 5_000_000
    """Of a GPU: short enough that the power cap does not hold the clock down."""
    gap_ns: int = 10_000_000
    """Between two blocks on a GPU, so that its mean power stays below the cap."""
    least_blocks: int = 10
    most_blocks: int = 60
    operator_limit_ns: int = 5_000_000_000
    """Past this an operator's time is taken as it is, whatever its interval."""
    settle_s: float = 1.0
    window_s: float = 1.5
    base_window_s: float = 0.4
    least_windows: int = 2
    most_windows: int = 6

    def document(self) -> dict[str, Any]:
        """Return the choices as plain values."""
        return {**asdict(self), "modes": [mode.value for mode in self.modes]}


HOT_FRAC, ROTATING_FRAC = 0.5, 2.0
"""Inputs written less than so many cache sizes ago are in the cache; more than so many ago they are not."""


def mode_weights(reuse_bytes: float | None, cache_bytes: int) -> dict[Mode, float]:
    """Return how much of each mode an operator's cost is made of; the weights sum to 1.

    Args:
        reuse_bytes: Bytes touched since its inputs were written; None where that was before everything.
        cache_bytes: The size of the cache.
    """
    if reuse_bytes is None or reuse_bytes >= ROTATING_FRAC * cache_bytes:
        return {Mode.ROTATING: 1.0}
    if reuse_bytes <= HOT_FRAC * cache_bytes:
        return {Mode.HOT: 1.0}
    rotating = (reuse_bytes / cache_bytes - HOT_FRAC) / (ROTATING_FRAC - HOT_FRAC)
    return {Mode.ROTATING: rotating, Mode.HOT: 1 - rotating}
