"""What every picture of lines shares: colours, units of an axis, labels that keep apart, files that repeat."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.errors import UsageError
from gpuledger.files.writing import is_special
from gpuledger.report.plots.figures import FAINT, INK, SOFT, drawable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path as LinePath
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

SUFFIXES = (".png", ".svg", ".pdf")
DPI = 150
LEGEND_DETAIL_IN = 0.15
LINE_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#3d3d3d")
"""Okabe and Ito's colours for colour-blind readers, in fixed order; yellow, which white swallows, is left out."""
LINE_STYLES = ("-", "--", ":", "-.")
"""After the last colour the first comes again, with the next style."""
_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": None},
}


@contextmanager
def own_settings() -> Iterator[None]:
    """Draw with matplotlib's own defaults: a user's matplotlibrc would make another picture of the same run.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError("plot: matplotlib is not installed", hint="pip install 'gpuledger[plot]'") from error
    defaults = {**matplotlib.rcParamsDefault, "svg.hashsalt": "gpuledger", "text.parse_math": False}
    with matplotlib.rc_context(defaults):
        yield


def picture_bytes(figure: Figure, suffix: str) -> bytes:
    """Return the figure as a file of this kind; the same figure gives the same bytes."""
    stream = io.BytesIO()
    with own_settings():
        figure.savefig(stream, format=suffix.removeprefix("."), dpi=DPI, metadata=_METADATA[suffix])
    return stream.getvalue()


def picture_suffix(place: Path) -> str:
    """Return which kind of picture a file's name asks for: ``.png``, ``.svg`` or ``.pdf``; a device's none is PNG.

    Raises:
        UsageError: none of these.
    """
    suffix = place.suffix.lower()
    if not suffix and is_special(place):
        return SUFFIXES[0]
    if suffix not in SUFFIXES:
        raise UsageError(f"{place}: not a picture format", hint=f"Use a name that ends in {', '.join(SUFFIXES)}")
    return suffix


def line_look(number: int) -> tuple[str, str]:
    """Return colour and style of the line of this number, from 0."""
    return LINE_COLORS[number % len(LINE_COLORS)], LINE_STYLES[number // len(LINE_COLORS) % len(LINE_STYLES)]


@dataclass(frozen=True)
class AxisUnit:
    """The unit of an axis: a value divided by ``size`` is shown with ``decimals``, ``6,247 MiB``."""

    name: str
    size: float
    decimals: int = 0

    def text(self, value: float) -> str:
        """Return a value with its unit."""
        shown = value / self.size
        decimals = self.decimals if abs(shown) < 1_000 and not shown.is_integer() else min(self.decimals, 0)
        return f"{shown:,.{max(decimals, 0)}f} {self.name}"


def axis_unit(unit: str, largest: float) -> AxisUnit:
    """Return the unit to show values of B, W, 1, MHz or s in, up to ``largest``. MiB stay MiB until they are many."""
    if unit == "B":
        if largest >= 32 << 30:
            return AxisUnit("GiB", float(1 << 30), 2)
        return AxisUnit("MiB", float(1 << 20), 1) if largest >= 1 << 20 else AxisUnit("KiB", 1024.0, 1)
    return AxisUnit("%", 0.01, 1) if unit == "1" else AxisUnit(unit, 1.0, 1)


def dress(axis: Axes) -> None:
    """Give an axis quiet lines and a grid that can be read off."""
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color(FAINT)
    axis.tick_params(length=0, labelcolor=SOFT, labelsize=9)
    axis.yaxis.grid(True, color="#e9edf1", linewidth=0.8)
    axis.set_axisbelow(True)


def write_head(figure: Figure, title: str, subtitle: str) -> None:
    """Write title and subtitle in the figure's upper left corner."""
    width, height = figure.get_size_inches()
    figure.text(0.25 / width, 1 - 0.22 / height, drawable(title), size=14, weight="bold", va="top", color=INK)
    figure.text(0.25 / width, 1 - 0.54 / height, drawable(subtitle), size=9.5, va="top", color=SOFT)


@dataclass(frozen=True)
class LegendEntry:
    """A line's name, and what is said of it below, a line each."""

    name: str
    details: tuple[str, ...] = ()

    @property
    def height_in(self) -> float:
        """Return the height of the entry with the room below it."""
        return 0.26 + LEGEND_DETAIL_IN * len(self.details)


def draw_legend(figure: Figure, entries: Sequence[LegendEntry], corner_in: tuple[float, float]) -> None:
    """List the lines in the order of their colours, from a corner in inches."""
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()
    left, top = corner_in[0] / width, corner_in[1]
    text_left = left + 0.34 / width
    for number, entry in enumerate(entries):
        color, style = line_look(number)
        look: dict[str, Any] = {"color": color, "linestyle": style, "linewidth": 2.4}
        figure.add_artist(Line2D([left, left + 0.24 / width], [top / height] * 2, **look))
        figure.text(text_left, top / height, drawable(entry.name), size=10, weight="bold", color=INK, va="center")
        for place, detail in enumerate(entry.details, 1):
            y = (top - LEGEND_DETAIL_IN * place - 0.02) / height
            figure.text(text_left, y, detail, size=8.5, color=SOFT, va="center")
        top -= entry.height_in


@dataclass(frozen=True)
class Label:
    """Words for a point of the axes, in data coordinates."""

    x: float
    y: float
    words: str
    color: str


def place_labels(axis: Axes, labels: Sequence[Label], *, size: float = 9, weight: str = "bold") -> None:
    """Write each label near its point so that no two overlap and none leaves the axes.

    Of the places around a point the nearest free one is taken, and one that hides no line before others. A label that
    is not at its point gets a leader.
    """
    figure = axis.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    inside = axis.get_window_extent()
    paths_px = [line.get_path().transformed(axis.transData) for line in axis.get_lines() if line.get_gid() == "data"]
    taken: list[Bbox] = []
    for label in labels:
        text = axis.annotate(
            drawable(label.words), (label.x, label.y), (0, 0), "data", "offset points", size=size, weight=weight,
            color=label.color, ha="center", va="bottom", annotation_clip=False, zorder=6, bbox=_GROUND,
        )  # fmt: skip
        offset, box = _best_place(text, inside, taken, paths_px)
        taken.append(box)
        text.set_position(offset)
        _draw_leader(axis, label, box)


def _draw_leader(axis: Axes, label: Label, box: Bbox) -> None:
    """Join a point to the nearest place of its label's box, unless they touch."""
    x, y = axis.transData.transform((label.x, label.y))
    near = (min(max(x, box.x0), box.x1), min(max(y, box.y0), box.y1))
    if math.hypot(near[0] - x, near[1] - y) > _NEAR_PIXELS:
        ends = axis.transData.inverted().transform([near, (x, y)])
        axis.plot(ends[:, 0], ends[:, 1], color=label.color, linewidth=0.8, zorder=4, scalex=False, scaley=False)


_GROUND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
_NEAR_PIXELS = 12.0
_PLACES = sorted(
    ((dx, dy) for dx in range(-240, 241, 20) for dy in (6, -20, 20, 34, 48, 62, 76, 90, 104, 118, -34)),
    key=lambda place: (abs(place[0]) * 0.7 + abs(place[1]) + (8 if place[1] < 0 else 0), place),
)
"""Offsets in points of a label's lower middle, the nearest first; below a point counts as a little further."""


def _best_place(
    text: Text, inside: Bbox, taken: Sequence[Bbox], paths_px: Sequence[LinePath]
) -> tuple[tuple[float, float], Bbox]:
    """Return the offset in points of the best place for a label, and its box in pixels there."""
    figure = text.get_figure(root=True)
    assert figure is not None
    own, pixels = text.get_window_extent(), figure.dpi / 72
    best: tuple[float, tuple[float, float], Bbox] | None = None
    beside = own.width / pixels / 2 + 8
    for rank, (dx, dy) in enumerate((*_PLACES[:2], (-beside, -6.0), (beside, -6.0), *_PLACES[2:])):
        box = own.translated(dx * pixels, dy * pixels).padded(2 * pixels)
        outside = max(inside.x0 - box.x0, 0) + max(box.x1 - inside.x1, 0)
        outside += max(inside.y0 - box.y0, 0) + max(box.y1 - inside.y1, 0)
        overlaps = sum(box.overlaps(other) for other in taken)
        cost = 1e6 * overlaps + 1e3 * outside + rank
        if best is not None and cost >= best[0]:
            continue
        cost += _HIDDEN_COST * sum(path.intersects_bbox(box, filled=False) for path in paths_px)
        if best is None or cost < best[0]:
            best = cost, (float(dx), float(dy)), box
    assert best is not None
    return best[1], best[2]


_HIDDEN_COST = 40
"""A label goes this many places further rather than hide a piece of a line."""
