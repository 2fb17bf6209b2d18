"""How operators are measured: all settings in one value, which is stored with each result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

L2_ROUNDS = 3
"""Least total size of the rotating copies of inputs, in cache sizes."""
MEMORY_FRAC = 0.25
"""Largest share of the free memory for the copies."""
REFERENCE_EVERY = 20
BASE_EVERY = 10
"""Number of operators with energy after which the idle power is measured again."""


class Mode(StrEnum):
    """Whether an operator's inputs are in the cache (hot) or not (rotating)."""

    HOT = "hot"
    ROTATING = "rotating"


class How(StrEnum):
    """How calls are launched."""

    GRAPH = "graph"
    EAGER = "eager"
    CPU = "cpu"


@dataclass(frozen=True)
class Method:
    """How one quantity is measured. ``_ns`` and ``_s`` are durations, ``target_frac`` is half the target interval."""

    target_frac: float = 0.01
    energy: bool = True
    modes: tuple[Mode, ...] = (Mode.ROTATING, Mode.HOT)
    seed: int = 0
    warm_up_ns: int = 20_000_000
    block_ns: int = 5_000_000
    """On a GPU: short enough that the power limit does not lower the clock."""
    gap_ns: int = 10_000_000
    """Pause between two blocks on a GPU, so that its mean power stays below the limit."""
    least_blocks: int = 10
    most_blocks: int = 60
    operator_limit_ns: int = 5_000_000_000
    """After this time, the measurement of an operator ends with any interval."""
    settle_s: float = 1.0
    window_s: float = 1.5
    base_window_s: float = 0.4
    least_windows: int = 2
    most_windows: int = 6

    def document(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return {**asdict(self), "modes": [mode.value for mode in self.modes]}


HOT_FRAC, ROTATING_FRAC = 0.5, 2.0
"""Reuse distances in cache sizes: inputs below the first are in the cache, above the second they are not."""


def mode_weights(reuse_bytes: float | None, cache_bytes: int) -> dict[Mode, float]:
    """Return the weight of each mode in an operator's cost. The weights sum to 1.

    Args:
        reuse_bytes: Bytes accessed since its inputs were used; None if they were not used before.
        cache_bytes: The size of the cache.
    """
    if reuse_bytes is None or reuse_bytes >= ROTATING_FRAC * cache_bytes:
        return {Mode.ROTATING: 1.0}
    if reuse_bytes <= HOT_FRAC * cache_bytes:
        return {Mode.HOT: 1.0}
    rotating = (reuse_bytes / cache_bytes - HOT_FRAC) / (ROTATING_FRAC - HOT_FRAC)
    return {Mode.ROTATING: rotating, Mode.HOT: 1 - rotating}
