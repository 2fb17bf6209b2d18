"""Bar charts of groups: two stacked bars of one total, and one bar per category; several runs on one scale."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.keywords.keyword_file import OTHERS, UNTRACKABLE
from gpuledger.errors import UsageError
from gpuledger.report.base.colors import CATEGORY_COLORS
from gpuledger.report.base.phrases import percent, place_of
from gpuledger.report.plots.figures import INK, SOFT, drawable, new_figure, shortened
from gpuledger.report.plots.plot_style import dress
from gpuledger.units import device_label, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gpuledger.analyze.keywords.keyword_groups import EntryGroup, GroupedEntries, Grouping

PALETTE = (
    "#4b3f9e", "#44aa99", "#cc6677", "#ddcc77", "#88ccee", "#882255", "#117733", "#aa4499", "#999933", "#6699cc",
    "#e39c6b", "#7a5195", "#5f9e6e", "#b4768a", "#94a3b8", "#8c6d31",
)  # fmt: skip
"""Colours of groups that are no single category, the largest first; none is a category's."""
OTHERS_COLOR = "#dfe3e8"
LABEL_IN = 0.185
"""Height of one line of labels."""
BAR_IN, BAR_GAP_IN, LEADER_IN = 1.15, 0.4, 0.3
NAME_CHARACTERS = 26
MOST_PANELS = 64
"""More make a picture larger than the formats allow."""
GROUND = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
"""Behind labels, so that no line of the grid runs through them."""
HEADROOM = 1.04
"""A scale ends this much above the largest bar."""
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))


@dataclass(frozen=True)
class Panel:
    """One run, or one device of it, in a chart: what it is called, and its groups."""

    title: str
    grouping: Grouping


@dataclass(frozen=True)
class _Part:
    """One piece of a bar. ``swallowed`` are the groups that were too small to be drawn by themselves."""

    name: str
    bytes: int
    color: str
    hatch: str = ""
    swallowed: tuple[tuple[str, int], ...] = ()


def draw_bars(
    panels: Sequence[Panel],
    kind: str,
    *,
    title: str = "",
    min_share_frac: float = 0.0,
    among: Sequence[Panel] | None = None,
) -> Figure:
    """Return a figure of ``panels`` as small multiples, all on one scale, groups in one order.

    Args:
        panels: What is drawn, in this order.
        kind: ``two-bar`` or ``categories``.
        title: Above the figure; without it a short one is made.
        min_share_frac: Groups below this share of their panel's total are not drawn by themselves but named below.
        among: The panels that scale, order and colours come from, where ``panels`` are some of them.

    Raises:
        UsageError: no such kind, more panels than a picture has room for, or matplotlib is not installed.
    """
    if len(panels) > MOST_PANELS:
        message = f"{len(panels)} devices of runs in one picture: at most {MOST_PANELS}"
        raise UsageError(message, hint="Use -o DIR/ to draw each run into its own file")
    if kind not in _KINDS:
        raise UsageError(f"--kind {kind}: no such chart", hint=f"Use one of {', '.join(_KINDS)}")
    figure: Figure = _KINDS[kind](panels, among or panels, title, min_share_frac)
    return figure


def _draw_two_bar(panels: Sequence[Panel], among: Sequence[Panel], title: str, min_share_frac: float) -> Figure:
    names = _dictionary_names(among)[:2]
    colors = {name: _colors(among, name) for name in names}
    bars = [[_parts(panel, name, colors[name], min_share_frac) for name in names] for panel in panels]
    columns = min(len(panels), 3 if len(panels) == 3 else 2)
    rooms = [_label_room_in(panel_bars[x] for panel_bars in bars) for x in range(len(names))]
    lines = max(len(parts) for panel_bars in bars for parts in panel_bars)
    width_in = sum(rooms) + len(names) * (BAR_IN + BAR_GAP_IN)
    notes = [_notes(panel, names, own, len(panels) > 1) for panel, own in zip(panels, bars, strict=True)]
    grid = _Grid(len(panels), columns, width_in, max(4.2, lines * LABEL_IN * 1.25))
    figure, axes = grid.make(title or _default_title(panels, names), [line for lines in notes for line in lines])
    top = max(panel.grouping.total_bytes for panel in among)
    unit = _unit(top)
    for place, (panel, panel_bars, axis) in enumerate(zip(panels, bars, axes, strict=True)):
        _dress(axis, panel, top, unit, labelled=place % columns == 0)
        axis.set_xlim(0, width_in)  # so that an inch of the axis is an inch of paper
        first = (rooms[0] if len(names) > 1 else 0.0) + BAR_GAP_IN / 2
        centers = [first + BAR_IN / 2 + x * (BAR_IN + BAR_GAP_IN) for x in range(len(names))]
        axis.set_xticks(centers, [drawable(name[:1].upper() + name[1:]) for name in names])
        for tick in axis.get_xticklabels():
            tick.set(weight="bold", color=INK, parse_math=False)
        for center, parts in zip(centers, panel_bars, strict=True):
            side = -1 if center == centers[0] and len(names) > 1 else 1
            _stack(axis, center, side, parts, panel.grouping.total_bytes, unit, grid.panel_in)
    return figure


def _label_room_in(bars: Iterable[list[_Part]]) -> float:
    """Return the inches that the labels beside these bars need."""
    longest = max((len(shortened(part.name, NAME_CHARACTERS)) for parts in bars for part in parts), default=0)
    return LEADER_IN + 0.078 * longest + 1.15


def _draw_categories(panels: Sequence[Panel], among: Sequence[Panel], title: str, min_share_frac: float) -> Figure:
    name = _category_dictionary(_dictionary_names(among))
    colors = _colors(among, name)
    bars = [_parts(panel, name, colors, min_share_frac) for panel in panels]
    shown = list(dict.fromkeys(part.name for part in _parts_of_all(among, name, colors, min_share_frac)))
    columns = 1 if len(panels) == 1 else 2
    width_in = max(6.4 if columns == 1 else 5.0, 0.5 * len(shown) + 1.2)
    notes = [_notes(panel, (name,), [parts], len(panels) > 1) for panel, parts in zip(panels, bars, strict=True)]
    grid = _Grid(len(panels), columns, width_in, 3.6, below_in=1.25)
    figure, axes = grid.make(title or _default_title(panels, (name,)), [line for lines in notes for line in lines])
    top = max((part.bytes for panel in among for part in _parts(panel, name, colors, 0.0)), default=0)
    unit = _unit(top)
    for place, (panel, parts, axis) in enumerate(zip(panels, bars, axes, strict=True)):
        _dress(axis, panel, top, unit, labelled=place % columns == 0, room=1.13)
        sizes = {part.name: part for part in parts if not part.swallowed}
        for x, label in enumerate(shown):
            part = sizes.get(label)
            if part is not None:
                _column(axis, x, part, panel.grouping.total_bytes, unit)
        axis.set_xlim(-0.7, len(shown) - 0.3)
        axis.set_xticks(range(len(shown)), [drawable(shortened(label, 24)) for label in shown])
        for tick in axis.get_xticklabels():
            tick.set(rotation=38, ha="right", rotation_mode="anchor", size=8.5, color=INK, parse_math=False)
    return figure


_KINDS: dict[str, Callable[[Sequence[Panel], Sequence[Panel], str, float], Any]] = {
    "two-bar": _draw_two_bar,
    "categories": _draw_categories,
}
KINDS = tuple(_KINDS)


# What is drawn


def _dictionary_names(panels: Sequence[Panel]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.dictionary for panel in panels for one in panel.grouping.dictionaries))


def _category_dictionary(names: tuple[str, ...]) -> str:
    return "data structure" if "data structure" in names else names[0]


def _groups(panel: Panel, dictionary: str) -> tuple[EntryGroup, ...]:
    found: GroupedEntries | None = next(
        (one for one in panel.grouping.dictionaries if one.dictionary == dictionary), None
    )
    return () if found is None else tuple(group for group in found.groups if group.bytes > 0)


def _colors(panels: Sequence[Panel], dictionary: str) -> dict[str, str]:
    """Return a colour for every group, in the order of drawing: largest over all panels first, Others last.

    Where every group is one category and no two the same, they have the categories' colours.
    """
    sizes: dict[str, int] = {}
    categories: dict[str, set[str]] = {}
    for panel in panels:
        for group in _groups(panel, dictionary):
            sizes[group.name] = sizes.get(group.name, 0) + group.bytes
            categories.setdefault(group.name, set()).update(entry.category for entry in group.entries)
    order = sorted(sizes, key=lambda name: (name == OTHERS, -sizes[name], name))
    own = [name for name in order if name != OTHERS]
    single = [next(iter(categories[name])) for name in own if len(categories[name]) == 1]
    by_category = len(single) == len(own) == len(set(single)) and set(single) <= set(CATEGORY_COLORS)
    chosen = [CATEGORY_COLORS[word] for word in single] if by_category else PALETTE * (len(own) // len(PALETTE) + 1)
    return {**dict(zip(own, chosen, strict=False)), **({OTHERS: OTHERS_COLOR} if OTHERS in order else {})}


def _parts(panel: Panel, dictionary: str, colors: dict[str, str], min_share_frac: float) -> list[_Part]:
    """Return the pieces of one bar from the bottom up; they sum to the panel's total."""
    total = panel.grouping.total_bytes
    sizes = {group.name: group.bytes for group in _groups(panel, dictionary)}
    listed = [(name, sizes[name]) for name in colors if name in sizes]
    small = tuple(item for item in listed if item[1] < min_share_frac * total)
    parts = [_Part(name, size, colors[name]) for name, size in listed if (name, size) not in small]
    if small:
        left = sum(size for _, size in small)
        parts.append(_Part(f"{len(small)} smaller", left, "#f3f4f6", swallowed=small))
    if panel.grouping.untrackable.bytes:
        parts.append(_Part(UNTRACKABLE, panel.grouping.untrackable.bytes, "#ffffff", hatch="////"))
    return parts


def _parts_of_all(panels: Sequence[Panel], name: str, colors: dict[str, str], min_share_frac: float) -> list[_Part]:
    """Return the pieces that any panel draws by itself, in the order of drawing, Untrackable last."""
    found = {part.name: part for panel in panels for part in _parts(panel, name, colors, min_share_frac)}
    order = [*colors, UNTRACKABLE]
    return [found[label] for label in order if label in found]


# Words


def _default_title(panels: Sequence[Panel], names: tuple[str, ...]) -> str:
    what = "GPU memory" if any(panel.grouping.device_idx >= 0 for panel in panels) else "Memory"
    total = f": {format_bytes(panels[0].grouping.total_bytes)}" if len(panels) == 1 else ""
    return f"{what} by {' and '.join(names)}{total}"


def _subtitle(panel: Panel) -> str:
    grouping = panel.grouping
    total = format_bytes(grouping.total_bytes)
    left = grouping.untrackable.bytes
    parts = f" = {format_bytes(grouping.allocated_bytes)} + {format_bytes(left)} untrackable" if left else ""
    where = " · ".join(one for one in (grouping.instant.label, place_of(grouping.instant)) if one)
    rank = grouping.rank_of_several
    device = device_label(grouping.device_idx) + ("" if rank is None else f", rank {rank}")
    return f"{total}{parts}\n{shortened(where, 60)} · {device}"


def _notes(panel: Panel, names: tuple[str, ...], bars: list[list[_Part]], named: bool) -> list[str]:
    """Return what the picture leaves out or cannot know, one paragraph each."""
    grouping = panel.grouping
    lines = [
        f"{line.name.replace('_', ' ')} {format_bytes(line.bytes)}" for line in grouping.untrackable.lines if line.bytes
    ]
    notes = [f"{UNTRACKABLE}: {', '.join(lines)}."] if lines and grouping.untrackable.bytes else []
    for dictionary, parts in zip(names, bars, strict=True):
        for part in parts:
            if part.swallowed:
                words = [f"{name} {percent(size, grouping.total_bytes)}" for name, size in part.swallowed]
                notes.append(f"Smaller by {dictionary}: {', '.join(words)}.")
    notes += grouping.notes
    return [f"{panel.title}: {note}" if named else note for note in notes]


def _unit(largest_bytes: int) -> tuple[str, int]:
    return next((unit for unit in _UNITS if largest_bytes >= unit[1]), _UNITS[-1])


# Drawing


@dataclass(frozen=True)
class _Grid:
    """``count`` axes of one size in rows, with room for a title above and notes below, all in inches."""

    count: int
    columns: int
    width_in: float
    panel_in: float
    below_in: float = 0.55
    above_in: float = 0.85
    left_in: float = 0.75

    def make(self, title: str, notes: list[str]) -> tuple[Figure, list[Axes]]:
        """Return the figure and its axes, row by row."""
        width = self.columns * self.width_in + self.left_in
        lines = [line for note in notes for line in textwrap.wrap(drawable(note), int(width * 15.5))]
        foot, head = len(lines) * 0.155 + 0.1, 0.5
        cell = self.above_in + self.panel_in + self.below_in
        rows = math.ceil(self.count / self.columns)
        height = head + rows * cell + foot
        figure = new_figure(width, height)
        style: dict[str, Any] = {"weight": "bold", "va": "top", "color": INK, "parse_math": False}
        figure.text(0.2 / width, 1 - 0.2 / height, drawable(title), size=13, **style)
        for place, line in enumerate(reversed(lines)):
            figure.text(0.2 / width, (0.1 + 0.155 * place) / height, line, size=8, color=SOFT, parse_math=False)
        axes = []
        for place in range(self.count):
            row, column = divmod(place, self.columns)
            bottom = foot + (rows - 1 - row) * cell + self.below_in
            left = self.left_in + column * self.width_in
            box = (left / width, bottom / height, (self.width_in - 0.35) / width, self.panel_in / height)
            axes.append(figure.add_axes(box))
        return figure, axes


def _dress(
    axis: Axes, panel: Panel, top: int, unit: tuple[str, int], *, labelled: bool, room: float = HEADROOM
) -> None:
    """Give an axis its title, its scale and its lines."""
    name, size = unit
    axis.set_ylim(0, max(top, 1) * room / size)
    axis.set_ylabel(name if labelled else "", color=SOFT)
    dress(axis)
    axis.annotate(
        drawable(shortened(panel.title, 48)), (0, 1), (0, 34), "axes fraction", "offset points", size=11,
        weight="bold", color=INK, parse_math=False,
    )  # fmt: skip
    for place, line in enumerate(_subtitle(panel).split("\n")):
        axis.annotate(
            drawable(line), (0, 1), (0, 20 - 12 * place), "axes fraction", "offset points", size=8.5, color=SOFT,
            parse_math=False,
        )  # fmt: skip


def _stack(
    axis: Axes, center: float, side: int, parts: list[_Part], total: int, unit: tuple[str, int], inches: float
) -> None:
    """Draw one stacked bar with its labels on ``side`` (-1 left, 1 right); the axis is ``inches`` high."""
    size = unit[1]
    middles, bottom = [], 0
    for part in parts:
        axis.bar(
            center, part.bytes / size, BAR_IN, bottom / size, color=part.color, hatch=part.hatch,
            edgecolor="#8b949e" if part.hatch else "white", linewidth=0.5,
        )  # fmt: skip
        middles.append(bottom + part.bytes / 2)
        bottom += part.bytes
    edge = center + side * BAR_IN / 2
    highest = axis.get_ylim()[1] * size
    places = spread(middles, highest / inches * LABEL_IN, highest)
    for part, middle, place in zip(parts, middles, places, strict=True):
        leader = [edge + side * share * LEADER_IN for share in (0.15, 0.5, 0.85)]
        axis.plot(leader, [middle / size, place / size, place / size], color="#adb5bd", linewidth=0.8)
        _label(axis, (edge + side * LEADER_IN, place / size), side, part, total)


def _label(axis: Axes, point: tuple[float, float], side: int, part: _Part, total: int) -> None:
    """Write a part's name, share and bytes beside ``point``, growing to ``side``."""
    texts = [
        (drawable(shortened(part.name, NAME_CHARACTERS)), INK),
        (f"{percent(part.bytes, total)} · {format_bytes(part.bytes)}", SOFT),
    ]
    ends = "right" if side < 0 else "left"
    style: dict[str, Any] = {"va": "center", "ha": ends, "size": 9, "parse_math": False, "bbox": GROUND}
    first, second = texts if side > 0 else texts[::-1]
    artist = axis.annotate(first[0], point, color=first[1], **style)
    axis.annotate(
        second[0], (1 if side > 0 else 0, 0.5), (6 * side, 0), artist, "offset points", color=second[1], **style
    )


def spread(middles: Sequence[float], gap: float, highest: float) -> list[float]:
    """Return places as near to ascending ``middles`` as can be, ``gap`` or more apart, from 0 to ``highest``.

    Less the gaps below them the places need only ascend: neighbours that do not are given their mean, and the ends
    are cut.
    """
    runs: list[tuple[float, int]] = []
    for number, middle in enumerate(middles):
        runs.append((middle - number * gap, 1))
        while len(runs) > 1 and runs[-2][0] > runs[-1][0]:
            (upper, above), (lower, below) = runs.pop(), runs.pop()
            runs.append(((upper * above + lower * below) / (above + below), above + below))
    ascending = [value for value, count in runs for _ in range(count)]
    room = max(highest - (len(middles) - 1) * gap, 0.0)
    return [min(max(value, 0.0), room) + number * gap for number, value in enumerate(ascending)]


def _column(axis: Axes, x: int, part: _Part, total: int, unit: tuple[str, int]) -> None:
    height = part.bytes / unit[1]
    axis.bar(x, height, 0.72, color=part.color, hatch=part.hatch, edgecolor="#8b949e" if part.hatch else "white")
    axis.annotate(
        percent(part.bytes, total), (x, height), (0, 4), "data", "offset points", ha="center", size=8.5, color=INK,
        bbox=GROUND,
    )  # fmt: skip
