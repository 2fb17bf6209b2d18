"""A time log in pictures: each layer's time by algorithm, and how the sum grows with the batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.analyze.step.layer_shapes import known_shapes
from gpuledger.report.base.terminal import MISSING
from gpuledger.report.plots.figures import INK, SOFT, drawable, new_figure
from gpuledger.report.plots.plot_style import LegendEntry, draw_legend, dress, line_look, write_head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gpuledger.analyze.step.layer_shapes import ConvShape
    from gpuledger.analyze.step.time_logs import TimeLog

LAYER_IN, LAYER_ROW_IN, SHAPE_LINES_IN = 0.5, 3.1, 0.45
VALUE_POINTS = 6.5
"""Height of one value beside a point."""
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
    x = np.arange(1, log.layer_s.shape[3] + 1)
    network, shapes = known_shapes(log)
    below_in = BOTTOM_IN + (SHAPE_LINES_IN if shapes else 0.0)
    figure, axes = _grid(len(types), len(batches), LAYER_ROW_IN, below_in, panel_in=max(PANEL_IN, LAYER_IN * x.size))
    low, high = _limits(log.layer_s)
    for row, kind in enumerate(types):
        for column, batch in enumerate(batches):
            axis = axes[row][column]
            for number in range(len(log.algorithms)):
                spread = log.layer_low_s[number, batch, kind], log.layer_high_s[number, batch, kind]
                _line(axis, x, log.layer_s[number, batch, kind], number, spread)
            head = f"batch {log.batches[batch]}"
            _dress_log(axis, f"{log.types[kind]}, {head}", (low, high), labelled=column == 0)
            _write_values(axis, log.layer_s[:, batch, kind], (low, high))
            last = row == len(types) - 1
            axis.set_xticks(x, _tick_words(x.size, shapes if last else (), log.batches[batch]))
            axis.tick_params(axis="x", labelsize=6.5 if shapes and last else 8.5)
            axis.set_xlabel("layer" if last else "", size=9.5, color=SOFT)
    of_network = f" · layers of {network}: channels, kernel, P parameters, I input values" if network else ""
    _finish(figure, log, title or f"{log.name}: time of each layer", of_network)
    return figure


def draw_batches(log: TimeLog, title: str = "") -> Figure:
    """Return a figure of the time summed over the layers, over the batch size: a column for each type."""
    types = _ordered(log)
    figure, axes = _grid(1, len(types), row_in=3.6, below_in=SUMS_FROM_IN + SUM_LINE_IN * len(log.algorithms) + 0.2)
    low, high = _limits(log.total_s)
    for column, kind in enumerate(types):
        axis = axes[0][column]
        for number in range(len(log.algorithms)):
            spread = log.total_low_s[number, :, kind], log.total_high_s[number, :, kind]
            _line(axis, np.array(log.batches), log.total_s[number, :, kind], number, spread)
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
    measured = np.nan_to_num(log.layer_s).max(axis=(0, 1, 3)) > 0
    found = [log.types.index(name) for name in order if measured[log.types.index(name)]]
    return found or [0]


def _limits(values_s: np.ndarray) -> tuple[float, float]:
    """Return the ends of one log scale in ms for everything above zero."""
    above = values_s[np.isfinite(values_s) & (values_s > 0)] * 1e3
    return (float(above.min()) / 1.6, float(above.max()) * 1.8) if above.size else (0.1, 1.0)


def _line(
    axis: Axes, x: np.ndarray, values_s: np.ndarray, number: int, spread_s: tuple[np.ndarray, np.ndarray]
) -> None:
    """Draw a line with the band between the fastest and the slowest repetition."""
    color, style = line_look(number)
    shown = np.where(values_s > 0, values_s * 1e3, np.nan)
    axis.plot(x[: shown.size], shown, color=color, linestyle=style, linewidth=1.6, marker="o", markersize=3.6)
    low, high = (np.where(bound > 0, bound * 1e3, np.nan) for bound in spread_s)
    axis.fill_between(x[: low.size], low, high, color=color, alpha=0.25, linewidth=0, gid="spread")


def _write_values(axis: Axes, values_s: np.ndarray, limits: tuple[float, float]) -> None:
    """Write each point's milliseconds above it, higher where a value stands: float64[algorithms, layers]."""
    per_decade = LAYER_ROW_IN * _POINTS_IN / (np.log10(limits[1]) - np.log10(limits[0]))
    style: dict[str, Any] = {"size": 5.5, "ha": "center", "va": "bottom"}
    for layer, column in enumerate((values_s * 1e3).T, 1):
        taken = -np.inf
        for number in (one for one in np.argsort(column).tolist() if column[one] > 0):
            point = per_decade * np.log10(column[number])
            taken = max(point + 2.5, taken + VALUE_POINTS)
            place = (layer, column[number]), (0, taken - point), "data", "offset points"
            axis.annotate(_milliseconds(column[number]), *place, color=line_look(number)[0], **style)


def _milliseconds(value: float) -> str:
    return f"{value:,.1f}" if 100 <= value < 1_000 else f"{value:,.{0 if value >= 1_000 else 2}f}"


def _tick_words(layers: int, shapes: Sequence[ConvShape], batch: int) -> list[str]:
    """Return what stands below each layer: its number, and its shape where that is known."""
    if not shapes:
        return [str(number) for number in range(1, layers + 1)]
    return [
        "\n".join(
            (
                str(number),
                shape.channels_text,
                shape.kernel_text,
                f"P {_short(shape.parameters)}",
                f"I {_short(shape.input_values * batch)}",
            )
        )
        for number, shape in enumerate(shapes, 1)
    ]


def _short(count: int) -> str:
    return f"{count / 1e6:.3g}M" if count >= 1_000_000 else f"{count / 1e3:.3g}k"


def _write_sums(axis: Axes, log: TimeLog, kind: int) -> None:
    """Write the sums in ms below the axis, a row for each algorithm in its colour."""
    style: dict[str, Any] = {"size": 8.5, "ha": "center", "va": "top", "annotation_clip": False}
    for number, values_ms in enumerate(log.total_s[:, :, kind] * 1e3):
        below = -_POINTS_IN * (SUMS_FROM_IN + SUM_LINE_IN * number)
        for batch, value in zip(log.batches, values_ms.tolist(), strict=True):
            words = _milliseconds(value) if value > 0 else MISSING
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
    rows: int, columns: int, row_in: float = ROW_IN, below_in: float = BOTTOM_IN, panel_in: float = PANEL_IN
) -> tuple[Figure, list[list[Axes]]]:
    width = LEFT_IN + columns * panel_in + (columns - 1) * GAP_IN + RIGHT_IN
    height = TOP_IN + rows * row_in + (rows - 1) * ROW_GAP_IN + below_in
    figure = new_figure(width, height)
    axes = []
    for row in range(rows):
        bottom = height - TOP_IN - row_in - row * (row_in + ROW_GAP_IN)
        boxes = [(LEFT_IN + column * (panel_in + GAP_IN), bottom, panel_in, row_in) for column in range(columns)]
        axes.append([figure.add_axes((x / width, y / height, w / width, h / height)) for x, y, w, h in boxes])
    return figure, axes


def _finish(figure: Figure, log: TimeLog, title: str, more: str = "") -> None:
    most = int(log.repeats.max())
    runs = f"mean of {most} repetitions, band from the fastest to the slowest" if most > 1 else "one repetition"
    write_head(figure, title, f"milliseconds, logarithmic · {runs}{more}{_unmeasured(log)}")
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
