"""Several runs over time in one picture: filled lines, real seconds, peaks by name, and the GPU's capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.samples.series import (
    BOOK_SOURCE,
    EVENTS,
    MEMORY,
    PROCESS_SOURCE,
    QUANTITIES,
    SECONDS,
    STAND_IN_SOURCE,
    STEPS,
    STEPS_SOURCE,
    UNKNOWN_CARD,
)
from gpuledger.report.plots.figures import INK, SOFT, new_figure, shortened
from gpuledger.report.plots.plot_style import (
    AxisUnit,
    Label,
    LegendEntry,
    axis_unit,
    draw_legend,
    dress,
    line_look,
    place_labels,
    write_head,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gpuledger.analyze.samples.series import Series

WIDTH_IN, HEIGHT_IN = 11.0, 5.6
LEFT_IN, RIGHT_IN, TOP_IN, BOTTOM_IN = 0.85, 2.75, 0.9, 0.65
MOST_LABELS = 12
FEW, FILL_ALPHA = 6, 0.13
NAME_CHARACTERS = 26
HEADROOM = 1.16
MOST_MARKS = 100
"""Of a line with more samples, the samples are not marked."""
CAPACITY_FACTOR = 2.5
"""A capacity further above the lines than this is named, not drawn: it would press them to the ground."""


@dataclass(frozen=True)
class Framing:
    """How the lines were laid: which metric, where time 0 is, and the title asked for."""

    metric: str
    align: str
    title: str = ""


def draw_lines(series: Sequence[Series], framing: Framing) -> Figure:
    """Return a figure of ``series``, the first in the first colour; their names should differ.

    Raises:
        UsageError: matplotlib is not installed.
    """
    quantity = QUANTITIES[framing.metric]
    unit = axis_unit(quantity.unit, max(abs(one.peak[1]) for one in series))
    names = short_names([one.name for one in series])
    entries = [_legend_entry(one, name, unit) for one, name in zip(series, names, strict=True)]
    height = max(HEIGHT_IN, TOP_IN + BOTTOM_IN + sum(entry.height_in for entry in entries))
    figure = new_figure(WIDTH_IN, height)
    box = (LEFT_IN, BOTTOM_IN, WIDTH_IN - LEFT_IN - RIGHT_IN, height - TOP_IN - BOTTOM_IN)
    axis = figure.add_axes((box[0] / WIDTH_IN, box[1] / height, box[2] / WIDTH_IN, box[3] / height))
    dress(axis)
    for number, one in sorted(enumerate(series), key=lambda pair: -pair[1].peak[1]):
        _draw_line(axis, one, number, unit, FILL_ALPHA if len(series) <= FEW else FILL_ALPHA / 3)
    _scale(axis, series, unit)
    _draw_capacity(axis, series, unit)
    _label_peaks(axis, series, names, unit)
    draw_legend(figure, entries, (WIDTH_IN - RIGHT_IN + 0.3, height - TOP_IN - 0.06))
    clock = series[0].line.clock
    label = f"seconds {_ORIGINS[framing.align]}" if clock == SECONDS else _UNTIMED[clock]
    axis.set_xlabel(label, size=9.5, color=SOFT)
    title, subtitle = _words(series, framing, unit, clock)
    write_head(figure, title, subtitle)
    return figure


def short_names(names: Sequence[str]) -> list[str]:
    """Return names without the beginning they all share: ``memory_fft`` becomes ``fft``.

    They are cut where a word ends, and only where every one still begins with a letter.
    """
    if len(set(names)) < 2:
        return list(names)
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    cuts = [place for place, letters in enumerate(same, 1) if letters[0] in _WORD_ENDS]
    for cut in reversed(cuts):
        if all(name[cut : cut + 1].isalpha() for name in names):
            return [name[cut:] for name in names]
    return list(names)


_WORD_ENDS = "_-. /"
_UNTIMED = {STEPS: "step (the runs have no times)", EVENTS: "allocation or free (the runs have no times)"}
_ORIGINS = {"start": "from the start of each run", "first-use": "from each run's first use of GPU memory"}


def _draw_line(axis: Axes, one: Series, number: int, unit: AxisUnit, alpha: float) -> None:
    """Draw a line that keeps each value until the next one: nothing between two samples was measured."""
    color, style = line_look(number)
    values = one.values / unit.size
    marks = "." if not one.line.steps and values.size <= MOST_MARKS else "None"
    style_of_line: dict[str, Any] = {"color": color, "linestyle": style, "linewidth": 1.5, "drawstyle": "steps-post"}
    axis.plot(one.t_s, values, marker=marks, markersize=4, zorder=3, gid="data", **style_of_line)
    axis.fill_between(one.t_s, values, 0, color=color, alpha=alpha, linewidth=0, step="post", zorder=2)
    if one.low is not None and one.high is not None:
        low, high = one.low / unit.size, one.high / unit.size
        axis.fill_between(one.t_s, low, high, color=color, alpha=0.3, linewidth=0, step="post", zorder=2)
    at_s, peak = one.peak
    axis.plot([at_s], [peak / unit.size], "o", color=color, markersize=5, markeredgecolor="white", zorder=5)


def _scale(axis: Axes, series: Sequence[Series], unit: AxisUnit) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    first, last = min(one.t_s[0] for one in series), max(one.t_s[-1] for one in series)
    margin = (last - first) * 0.01 or 0.5
    axis.set_xlim(first - margin, last + margin)
    top = max(one.peak[1] if one.high is None else float(one.high.max()) for one in series) / unit.size
    bottom = min(min(float(one.values.min()) for one in series) / unit.size, 0.0)
    axis.set_ylim(bottom * 1.05, (top or 1.0) * HEADROOM)
    axis.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _draw_capacity(axis: Axes, series: Sequence[Series], unit: AxisUnit) -> None:
    """Draw the capacity of each kind of GPU, or name it where it is far above."""
    sizes = {one.line.capacity - one.baseline: one.line.capacity for one in series if one.line.capacity}
    top = max(one.peak[1] for one in series)
    if not sizes:
        return
    far = ", ".join(unit.text(size) for free, size in sorted(sizes.items()) if free > CAPACITY_FACTOR * top)
    style: dict[str, Any] = {"size": 8.5, "color": SOFT, "ha": "right", "va": "bottom", "zorder": 4}
    for free, size in sizes.items():
        if free <= CAPACITY_FACTOR * top:
            axis.set_ylim(top=max(axis.get_ylim()[1], free / unit.size * 1.08))
            axis.axhline(free / unit.size, color=INK, linewidth=1.0, linestyle=(0, (5, 3)), zorder=4)
            x = axis.get_xlim()[1]
            axis.annotate(
                f"capacity {unit.text(size)}", (x, free / unit.size), (-4, 3), "data", "offset points", **style
            )
    if far:
        axis.annotate(f"capacity {far}, above this picture", (1, 1), (-4, 3), "axes fraction", "offset points", **style)


def _label_peaks(axis: Axes, series: Sequence[Series], names: Sequence[str], unit: AxisUnit) -> None:
    order = sorted(range(len(series)), key=lambda number: (-series[number].peak[1], number))
    labels = []
    for number in order[:MOST_LABELS]:
        at_s, peak = series[number].peak
        name = shortened(names[number], NAME_CHARACTERS)
        labels.append(Label(at_s, peak / unit.size, f"{name} {unit.text(peak)}", line_look(number)[0]))
    place_labels(axis, labels)


def _legend_entry(one: Series, name: str, unit: AxisUnit) -> LegendEntry:
    """Return a line's name, marked where its command failed, and its peak and what was taken off."""
    failed = f" (exit status {one.line.exit_status})" if one.line.exit_status else ""
    at_s, peak = one.peak
    at = f"{at_s:,.2f} s" if one.line.clock == SECONDS else f"{one.line.clock} {at_s:,.0f}"
    details = [f"peak {unit.text(peak)} at {at}"]
    if one.repeats > 1:
        details += [f"the run with the middle peak of {one.repeats}", "band: lowest and highest run"]
    if one.baseline:
        details.append(f"above {axis_unit('B', one.baseline).text(one.baseline)} at its beginning")
    return LegendEntry(shortened(name, NAME_CHARACTERS) + failed, tuple(details))


def _words(series: Sequence[Series], framing: Framing, unit: AxisUnit, clock: str) -> tuple[str, str]:
    """Return title and subtitle: what is shown, in which unit, above what, on which GPUs, from which source."""
    sources = list(dict.fromkeys(one.line.source for one in series))
    title = _title(framing.metric, sources) + (" over time" if clock == SECONDS else f" by {clock}")
    above = " above the first sample" if any(one.baseline for one in series) else ""
    cards = [name for name in dict.fromkeys(one.line.device_name for one in series) if name != UNKNOWN_CARD]
    parts = [f"{unit.name}{above}", ", ".join(sources), ", ".join(cards[:3])]
    return framing.title or title, " · ".join(part for part in parts if part)


def _title(metric: str, sources: Sequence[str]) -> str:
    if metric == MEMORY and set(sources) <= {BOOK_SOURCE, STEPS_SOURCE}:
        return "Allocated memory"
    if metric == MEMORY and set(sources) <= {PROCESS_SOURCE, STAND_IN_SOURCE}:
        return "The program's GPU memory"
    return QUANTITIES[metric].title
