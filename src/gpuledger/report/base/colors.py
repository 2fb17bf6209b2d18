"""One colour for each category, the same in the report, in figures and in the terminal."""

from __future__ import annotations

from gpuledger.model.accounts import ROUNDING

CATEGORY_COLORS = {
    "weight": "#4e79a7",
    "sharded_weight": "#6b93bd",
    "buffer": "#86bcb6",
    "optimizer_state": "#b07aa1",
    "sharded_optimizer_state": "#d4a6c8",
    "gradient": "#59a14f",
    "sharded_gradient": "#499894",
    "workspace": "#9c755f",
    "communication": "#e15759",
    "reduce_scatter": "#ff9d9a",
    "gathered_weight": "#d37295",
    "input": "#a0cbe8",
    "cache": "#b6992d",
    "activation": "#f28e2b",
    "activation_gradient": "#8cd17d",
    "temporary": "#f1ce63",
    "other": "#79706e",
    ROUNDING: "#bab0ac",
}
"""Category -> colour (``#rrggbb``), from Tableau 20; readable on light and dark backgrounds.

In the order of a stacked chart: from permanent to temporary memory, so that the lower edges change least.
"""

PHASE_COLORS = {
    "forward": "#0d72ea",
    "backward": "#d4189a",
    "optimizer": "#008f2f",
    "evaluation": "#a35cf5",
    "setup": "#8f6408",
    "between": "#008089",
    "kernel": "#6458e6",
    "copy": "#c26400",
    "collective": "#e60026",
    "other operators": "#008089",
    "outside operators": "#737d8c",
    "idle": "#737d8c",
}
"""Phase of a step, or kind of work -> colour, in the order in which they are stacked.

Full colours where those of categories are pale, so that time is not taken for memory. Each has a contrast of 3 to both
backgrounds of the report. "between" is the same on a CPU as "other operators", and "idle" as "outside operators".
"""

CARD_COLORS = {"program": "#4e79a7", "rest of the GPU": "#bab0ac", "used": "#4e79a7"}
"""Owner of the memory of a watched GPU -> colour."""

UNKNOWN_COLOR = "#79706e"
"""The colour of a category that this version does not have."""


def stack_order(categories: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``categories`` in the order in which they are stacked; unknown ones come last."""
    known = tuple(CATEGORY_COLORS)
    return tuple(sorted(categories, key=lambda name: (known.index(name) if name in known else len(known), name)))


def phase_order(phases: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``phases`` in the order in which they are stacked; unknown ones before idle."""
    known = tuple(PHASE_COLORS)
    return tuple(sorted(phases, key=lambda name: (known.index(name) if name in known else len(known) - 1.5, name)))


def phase_color(phase: str) -> str:
    """Return the colour of a phase or a kind of work, ``#rrggbb``."""
    return PHASE_COLORS.get(phase, UNKNOWN_COLOR)


def category_color(category: str) -> str:
    """Return the colour of ``category``, ``#rrggbb``."""
    return CATEGORY_COLORS.get(category) or CARD_COLORS.get(category, UNKNOWN_COLOR)
