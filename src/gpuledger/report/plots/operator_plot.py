"""Sums beside whole models as bars: time and energy, a pair of bars for each workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.report.plots.figures import INK, SOFT, drawable, new_figure, shortened
from gpuledger.report.plots.plot_style import dress, line_look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME_CHARACTERS = 34
BAR, PANEL_IN, ROW_IN, HEAD_IN, FOOT_IN, LABEL_IN = 0.38, 4.6, 0.5, 0.95, 0.55, 2.6


@dataclass(frozen=True)
class BarPair:
    """One workload: sum and whole with half their intervals, in ms or J. None: not measured."""

    name: str
    summed: float | None
    summed_half: float
    whole: float | None
    whole_half: float


def draw_pairs(times_ms: Sequence[BarPair], energies_j: Sequence[BarPair], title: str) -> Figure:
    """Return a figure with a panel for the times, and one for the energies where there are any.

    Raises:
        UsageError: matplotlib is not installed.
    """
    panels = [("time in ms", times_ms)]
    if any(pair.summed is not None and pair.whole is not None for pair in energies_j):
        panels.append(("energy in J", energies_j))
    height = HEAD_IN + FOOT_IN + ROW_IN * len(times_ms)
    width = LABEL_IN + PANEL_IN * len(panels)
    figure = new_figure(width, height)
    figure.text(0.15 / width, 1 - 0.3 / height, drawable(title), size=13, weight="bold", color=INK, parse_math=False)
    for place, (name, pairs) in enumerate(panels):
        box = (
            (LABEL_IN + PANEL_IN * place) / width,
            FOOT_IN / height,
            (PANEL_IN - 0.5) / width,
            ROW_IN * len(pairs) / height,
        )
        _draw_panel(figure.add_axes(box), name, pairs, is_named=place == 0)
    return figure


def _draw_panel(axis: Axes, name: str, pairs: Sequence[BarPair], *, is_named: bool) -> None:
    dress(axis)
    rows = np.arange(len(pairs))[::-1]
    for offset, words, values in (
        (BAR / 2, "sum of operators", [(pair.summed, pair.summed_half) for pair in pairs]),
        (-BAR / 2, "whole model", [(pair.whole, pair.whole_half) for pair in pairs]),
    ):
        color, _ = line_look(0 if offset > 0 else 1)
        widths = [value or 0.0 for value, _ in values]
        axis.barh(rows + offset, widths, BAR, xerr=[half for _, half in values], color=color, label=words, ecolor=SOFT)
    for row, pair in zip(rows, pairs, strict=True):
        if pair.summed is not None and pair.whole:
            end = max(pair.summed, pair.whole)
            axis.annotate(
                f"{(pair.summed / pair.whole - 1) * 100:+.1f} %", (end, row), (5, 0), "data", "offset points",
                va="center", size=8.5, color=INK,
            )  # fmt: skip
    axis.set_xlim(0, max((max(pair.summed or 0, pair.whole or 0) for pair in pairs), default=1.0) * 1.2 or 1.0)
    names = [drawable(shortened(pair.name, NAME_CHARACTERS)) if is_named else "" for pair in pairs]
    axis.set_yticks(rows, names)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel(name, color=SOFT)
    if is_named:
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=9)
