"""Two runs side by side as one HTML file: summaries, metrics that differ, and rows that differ, with bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger.report.base.markup import element, html_text
from gpuledger.report.base.phrases import place_of
from gpuledger.report.base.quantities import (
    LESS_COLOR,
    MORE_COLOR,
    exactly,
    metric_title,
    metric_unit,
    quantity,
    remark,
    signed,
    signed_share,
)
from gpuledger.report.html.static_page import static_page
from gpuledger.units import device_label, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuledger.analyze.compare.changes import Change
    from gpuledger.analyze.compare.diff import Diff, PlaceDiff, Side

ROWS = 200
BAR_WIDTH, BAR_HEIGHT = 240, 12


def render_diff(diff: Diff, tables_by: tuple[str, ...]) -> str:
    """Return a diff as the text of one HTML file with all devices, the one with the highest peak first."""
    places = sorted(diff.places, key=lambda place: place is not diff.main)
    return static_page(f"{diff.before} → {diff.after}", diff_fragment(diff, tables_by, places))


def diff_fragment(diff: Diff, tables_by: tuple[str, ...], places: Iterable[PlaceDiff]) -> str:
    """Return a diff as markup without a page around it."""
    parts = [element("h1", html_text(f"{diff.before} → {diff.after}"))]
    for place in places:
        parts += _place_parts(place, tables_by, named=len(diff.places) > 1)
    if diff.notes:
        parts += [element("h2", "Notes"), element("ul", *(element("li", html_text(note)) for note in diff.notes))]
    return "\n".join(parts)


def _place_parts(place: PlaceDiff, tables_by: tuple[str, ...], *, named: bool) -> list[str]:
    where = f"Rank {place.before.rank}, {device_label(place.before.device_idx)}"
    sides = element("div", _side("before", place.before), _side("after", place.after), class_="sides")
    parts = [element("h2", html_text(where)), sides] if named else [sides]
    if place.is_empty:
        return [*parts, element("p", "No difference.")]
    if place.figures:
        parts += [element("h2", "Metrics"), _figures(place)]
    for group_by in tables_by:
        if place.changes(group_by):
            parts += [
                element("h2", f"Change of allocated bytes by {group_by}"),
                _changes(group_by, place.changes(group_by), "B"),
            ]
    by = place.after.work_by
    if place.time_changes():
        parts += [element("h2", f"Change of a step's time by {by}"), _changes(by, place.time_changes(), "ns")]
    if place.energy_changes():
        parts += [element("h2", f"Change of a step's energy by {by}"), _changes(by, place.energy_changes(), "J")]
    return parts


def _side(label: str, side: Side) -> str:
    lines = [element("p", f"{label}: {html_text(side.run)}", class_="muted")]
    if side.breakdown is not None:
        size = side.breakdown.allocated_bytes
        lines.append(element("p", format_bytes(size), class_="value", title=exactly(size, "B")))
        lines.append(element("p", html_text(place_of(side.breakdown.instant))))
    texts = [device_label(side.device_idx), side.device_name, *(["compiled"] if side.is_compiled else [])]
    lines.append(element("p", html_text(" · ".join(texts)), class_="muted"))
    return element("div", *lines, class_="side")


def _figures(place: PlaceDiff) -> str:
    rows = []
    for change in place.figures:
        unit = metric_unit(change.key[0])
        cells = [_number(quantity(value, unit)) for value in (change.before, change.after)]
        cells += [
            _delta(change, unit),
            _number(signed_share(change.delta, change.before)),
            element("td", remark(change), class_="muted"),
        ]
        rows.append(_row(change, element("th", metric_title(change.key[0]), scope="row"), *cells))
    return _table(("", "before", "after", "change", "", ""), rows)


def _changes(group_by: str, changes: tuple[Change, ...], unit: str) -> str:
    largest = max(abs(change.delta or 0) for change in changes)
    rows = [
        _row(
            change,
            element("th", html_text(change.key[0]), scope="row"),
            *(_number(quantity(value, unit)) for value in (change.before, change.after)),
            _delta(change, unit),
            _number(signed_share(change.delta, change.before)),
            element("td", _bar((change.delta or 0) / largest)),
            element("td", remark(change), class_="muted"),
        )
        for change in changes[:ROWS]
    ]
    if changes[ROWS:]:
        rows.append(_sum_row(f"{len(changes) - ROWS:,} more", changes[ROWS:], unit))
    rows.append(_sum_row("total change", changes, unit))
    return _table((group_by, "before", "after", "change", "", "", ""), rows)


def _sum_row(label: str, changes: tuple[Change, ...], unit: str) -> str:
    delta = sum(change.delta or 0 for change in changes)
    empty = element("td")
    cells = (empty, empty, _number(signed(delta, unit), exactly(delta, unit)), empty, empty, empty)
    return element("tr", element("th", label, scope="row"), *cells, class_="total")


def _bar(share: float) -> str:
    """Return a bar from the middle to the left for less and to the right for more; ``share`` is between -1 and 1."""
    middle, width = BAR_WIDTH / 2, abs(share) * BAR_WIDTH / 2
    left = middle if share > 0 else middle - width
    sizes = {"height": str(BAR_HEIGHT), "aria_hidden": "true"}
    rect = element("rect", x=f"{left:.1f}", width=f"{width:.1f}", height=str(BAR_HEIGHT), fill=_fill(share))
    return element("svg", rect, width=str(BAR_WIDTH), viewBox=f"0 0 {BAR_WIDTH} {BAR_HEIGHT}", **sizes)


def _fill(share: float) -> str:
    return MORE_COLOR if share > 0 else LESS_COLOR


def _table(titles: tuple[str, ...], rows: list[str]) -> str:
    numbers = ("before", "after", "change")
    head = (
        element("th", html_text(title), scope="col", class_="number" if title in numbers else "text")
        for title in titles
    )
    table = element("table", element("thead", element("tr", *head)), element("tbody", *rows))
    return element("div", table, class_="scroll")


def _row(change: Change, *cells: str) -> str:
    return element("tr", *cells, class_="row" if change.is_certain else "noise")


def _number(text: str, title: str = "") -> str:
    return element("td", html_text(text), class_="number", **({"title": title} if title else {}))


def _delta(change: Change, unit: str) -> str:
    kind = "" if not change.delta or not change.is_certain else " more" if change.delta > 0 else " less"
    title = "" if change.delta is None else exactly(change.delta, unit)
    return element("td", html_text(signed(change.delta, unit)), class_=f"number{kind}", title=title)
