"""A time log in pictures: each layer's time by algorithm, and how the sum grows with the batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.report.base.phrases import MISSING
from gpuledger.report.plots.figures import INK, SOFT, drawable, new_figure
from gpuledger.report.plots.plot_style import LegendEntry, draw_legend, dress, line_look, write_head

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gpuledger.analyze.step.time_logs import TimeLog

PANEL_IN, GAP_IN, ROW_IN = 4.3, 0.55, 2.3
LEFT_IN, RIGHT_IN, TOP_IN, BOTTOM_IN = 0.8, 1.6, 1.2, 0.65
ROW_GAP_IN = 0.5
SUMS_FROM_IN, SUM_LINE_IN = 0.58, 0.17
_POINTS_IN = 72
TYPE_ORDER = ("TOTAL", "CONV", "OVERHEAD")
TYPE_WORDS = {
    "TOTAL": "with memory operations",
    "CONV": "the convolution alone",
    "OVERHEAD": "before and after it: pad, crop, flip",
}


def draw_layers(log: TimeLog, title: str = "") -> Figure:
    """Return a figure of every layer's time: a row for each type, a column for the smallest and the largest batch."""
    batches = list(dict.fromkeys((0, len(log.batches) - 1)))
    types = _ordered(log)
    figure, axes = _grid(len(types), len(batches))
    low, high = _limits(log.layer_s)
    for row, kind in enumerate(types):
        for column, batch in enumerate(batches):
            axis = axes[row][column]
            for number in range(len(log.algorithms)):
                _line(axis, np.arange(1, log.layer_s.shape[3] + 1), log.layer_s[number, batch, kind], number)
            head = f"batch {log.batches[batch]}"
            _dress_log(axis, f"{log.types[kind]}, {head}", (low, high), labelled=column == 0)
            axis.set_xticks(np.arange(1, log.layer_s.shape[3] + 1))
            axis.set_xlabel("layer" if row == len(types) - 1 else "", size=9.5, color=SOFT)
    _finish(figure, log, title or f"{log.name}: time of each layer")
    return figure


def draw_batches(log: TimeLog, title: str = "") -> Figure:
    """Return a figure of the time summed over the layers, over the batch size: a column for each type."""
    types = _ordered(log)
    figure, axes = _grid(1, len(types), row_in=3.6, below_in=SUMS_FROM_IN + SUM_LINE_IN * len(log.algorithms) + 0.2)
    low, high = _limits(log.total_s)
    for column, kind in enumerate(types):
        axis = axes[0][column]
        for number in range(len(log.algorithms)):
            _line(axis, np.array(log.batches), log.total_s[number, :, kind], number)
        axis.set_xscale("log", base=2)
        _dress_log(axis, log.types[kind], (low, high), labelled=column == 0)
        axis.set_xticks(log.batches, [str(batch) for batch in log.batches])
        axis.minorticks_off()
        axis.set_xlim(log.batches[0] / 1.4, log.batches[-1] * 1.4)
        _write_sums(axis, log, kind)
        axis.set_xlabel("batch size, and the sum of all layers in ms", size=9.5, color=SOFT)
    _finish(figure, log, title or f"{log.name}: time of all layers by batch size")
    return figure


def _ordered(log: TimeLog) -> list[int]:
    """Return the positions of the types that have a time above zero, the usual ones first."""
    order = sorted(log.types, key=lambda name: (TYPE_ORDER.index(name) if name in TYPE_ORDER else 9, name))
    found = [log.types.index(name) for name in order if np.nanmax(log.layer_s[:, :, log.types.index(name)]) > 0]
    return found or [0]


def _limits(values_s: np.ndarray) -> tuple[float, float]:
    """Return the ends of one log scale in ms for everything above zero."""
    above = values_s[np.isfinite(values_s) & (values_s > 0)] * 1e3
    return (float(above.min()) / 1.6, float(above.max()) * 1.8) if above.size else (0.1, 1.0)


def _line(axis: Axes, x: np.ndarray, values_s: np.ndarray, number: int) -> None:
    color, style = line_look(number)
    shown = np.where(values_s > 0, values_s * 1e3, np.nan)
    axis.plot(x[: shown.size], shown, color=color, linestyle=style, linewidth=1.6, marker="o", markersize=3.6)


def _write_sums(axis: Axes, log: TimeLog, kind: int) -> None:
    """Write the sums in ms below the axis, a row for each algorithm in its colour."""
    style: dict[str, Any] = {"size": 8.5, "ha": "center", "va": "top", "annotation_clip": False}
    for number, values_ms in enumerate(log.total_s[:, :, kind] * 1e3):
        below = -_POINTS_IN * (SUMS_FROM_IN + SUM_LINE_IN * number)
        for batch, value in zip(log.batches, values_ms.tolist(), strict=True):
            words = (
                MISSING
                if not value > 0
                else f"{value:,.1f}"
                if 100 <= value < 1_000
                else f"{value:,.{0 if value >= 1_000 else 2}f}"
            )
            place = (batch, 0), (0, below), ("data", "axes fraction"), "offset points"
            axis.annotate(words, *place, color=line_look(number)[0] if value > 0 else SOFT, **style)


def _dress_log(axis: Axes, head: str, limits: tuple[float, float], *, labelled: bool) -> None:
    from matplotlib.ticker import FuncFormatter

    dress(axis)
    axis.set_yscale("log")
    axis.set_ylim(*limits)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.tick_params(which="both", length=0)
    axis.set_ylabel("ms" if labelled else "", color=SOFT)
    name, _, rest = head.partition(", ")
    words = ", ".join(part for part in (rest, TYPE_WORDS.get(name, "")) if part)
    text = axis.annotate(drawable(name), (0, 1), (0, 7), "axes fraction", "offset points", weight="bold", color=INK)
    axis.annotate(drawable(words), (1, 0), (7, 0), text, "offset points", size=9, color=SOFT, va="bottom")


def _grid(
    rows: int, columns: int, row_in: float = ROW_IN, below_in: float = BOTTOM_IN
) -> tuple[Figure, list[list[Axes]]]:
    width = LEFT_IN + columns * PANEL_IN + (columns - 1) * GAP_IN + RIGHT_IN
    height = TOP_IN + rows * row_in + (rows - 1) * ROW_GAP_IN + below_in
    figure = new_figure(width, height)
    axes = []
    for row in range(rows):
        bottom = height - TOP_IN - row_in - row * (row_in + ROW_GAP_IN)
        boxes = [(LEFT_IN + column * (PANEL_IN + GAP_IN), bottom, PANEL_IN, row_in) for column in range(columns)]
        axes.append([figure.add_axes((x / width, y / height, w / width, h / height)) for x, y, w, h in boxes])
    return figure, axes


def _finish(figure: Figure, log: TimeLog, title: str) -> None:
    write_head(figure, title, f"milliseconds, logarithmic · mean of the log's repetitions{_unmeasured(log)}")
    width, height = figure.get_size_inches()
    draw_legend(
        figure, [LegendEntry(name) for name in log.algorithms], (width - RIGHT_IN + 0.25, height - TOP_IN - 0.1)
    )


def _unmeasured(log: TimeLog) -> str:
    """Return which algorithms have only zeros for a type: not measured, so not drawn."""
    lost = [
        f"{algorithm} {name}"
        for number, algorithm in enumerate(log.algorithms)
        for kind, name in enumerate(log.types)
        if not np.nanmax(np.append(log.layer_s[number, :, kind].ravel(), 0.0)) > 0
    ]
    return f" · zero in the log and not drawn: {', '.join(lost)}" if lost else ""
