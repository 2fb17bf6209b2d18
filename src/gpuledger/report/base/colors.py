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
    "forward": "#4e79a7",
    "backward": "#f28e2b",
    "optimizer": "#59a14f",
    "evaluation": "#76b7b2",
    "data": "#edc948",
    "setup": "#b07aa1",
    "between": "#9c755f",
    "kernel": "#4e79a7",
    "copy": "#edc948",
    "collective": "#e15759",
    "host": "#4e79a7",
    "idle": "#c5c5c9",
}
"""Phase of a step, or kind of work -> colour, in the order in which they are stacked."""

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
