"""HTML of a run, a diff and a balance in a notebook: tables and a picture, without scripts, with all names escaped."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.compare.diff import Diff
from gpuledger.analyze.memory.groups import group_accounts
from gpuledger.analyze.overview.balance import Balance
from gpuledger.analyze.samples.watched import watched
from gpuledger.analyze.view.options import ViewOptions
from gpuledger.analyze.view.view import build_view
from gpuledger.model.run import Run
from gpuledger.report.base.colors import category_color
from gpuledger.report.base.markup import element, html_text
from gpuledger.report.base.phrases import of_capacity, place_of, share
from gpuledger.report.base.quantities import quantity
from gpuledger.report.base.terminal import MISSING, Terminal
from gpuledger.report.html.diff_html import diff_fragment
from gpuledger.report.html.svg import timeline_svg
from gpuledger.report.text.watched_text import watched_lines
from gpuledger.units import device_label

if TYPE_CHECKING:
    from gpuledger.analyze.memory.breakdown import Breakdown
    from gpuledger.analyze.overview.summary import Summary

POINTS = 400
BAR_WIDTH = 160


def html_of(value: object) -> str:
    """Return a run, a diff or a balance as HTML."""
    for kind, draw in _DRAWN.items():
        if isinstance(value, kind):
            return _framed(*draw(value))
    return _framed(element("pre", html_text(repr(value))))


def _run_parts(run: Run) -> list[str]:
    status = run.manifest.status or ""
    parts = [element("h1", html_text(run.name)), element("p", html_text(status), class_="muted")]
    view = build_view(run, ViewOptions(timeline_points=POINTS))
    if not view.devices:
        return [*parts, _watched_part(run)]
    titles = ("rank", "device", "recorded peak allocated", "recorded peak reserved", "step time", "peak at")
    parts.append(_table(titles, (_row(device.summary) for device in view.devices)))
    parts += [timeline_svg(view.highest.timeline), *_category_parts(view.highest.breakdown)]
    return [*parts, *_notes((*view.notes, *view.highest.summary.outside_notes))]


def _watched_part(run: Run) -> str:
    """Return the figures of the GPUs during a watched run, as in the terminal."""
    figures = watched(run)
    if not figures:
        return element("p", "No allocation was recorded.")
    return element("pre", html_text("\n".join(watched_lines(run, figures, Terminal(100, "utf-8")))))


def _row(summary: Summary) -> list[str]:
    return [
        str(summary.rank),
        f"{device_label(summary.device_idx)} · {summary.device_name}",
        of_capacity(summary.recorded_peak_allocated_bytes, summary.capacity_bytes),
        quantity(summary.recorded_peak_reserved_bytes, "B"),
        quantity(summary.step_time.median_ns, "ns"),
        place_of(summary.instant),
    ]


def _category_parts(breakdown: Breakdown) -> list[str]:
    groups = group_accounts(breakdown.accounts, "category")
    largest = max(group.bytes for group in groups)
    rows = [
        (group.label, quantity(group.bytes, "B"), share(group.bytes, breakdown.allocated_bytes), group.bytes / largest)
        for group in groups
    ]
    return [element("h2", "At the peak"), _bar_table("category", rows)]


def _balance_parts(balance: Balance) -> list[str]:
    where = " · ".join(part for part in (balance.device_name, place_of(balance.instant)) if part)
    sizes = [abs(line.bytes) for line in balance.lines if line.bytes is not None]
    largest = max([balance.total_bytes or 0, *sizes, 1])
    rows = [
        (
            "\N{EN SPACE}" * (2 * line.level) + line.name,
            quantity(line.bytes, "B"),
            share(line.bytes, balance.total_bytes),
            (line.bytes or 0) / largest,
        )
        for line in balance.lines
    ]
    head = element("h1", html_text(f"Balance at the {balance.instant.label}"))
    return [head, element("p", html_text(where), class_="muted"), _bar_table("line", rows), *_notes(balance.notes)]


def _diff_parts(diff: Diff) -> list[str]:
    return [diff_fragment(diff, ("category", "module"), [diff.main])]


_DRAWN: dict[type, Callable[[Any], list[str]]] = {Run: _run_parts, Diff: _diff_parts, Balance: _balance_parts}


def _bar_table(title: str, rows: list[tuple[str, str, str, float]]) -> str:
    body = [
        element(
            "tr",
            element("td", html_text(name)),
            element("td", html_text(size), class_="number"),
            element("td", html_text(part), class_="number"),
            element("td", _bar(name.strip(), length)),
        )
        for name, size, part, length in rows
    ]
    head = (
        element("th", html_text(word), class_=kind)
        for word, kind in ((title, ""), ("bytes", "number"), ("share", "number"))
    )
    return element("table", element("thead", element("tr", *head, element("th"))), element("tbody", *body))


def _bar(category: str, length: float) -> str:
    rect = element("rect", width=f"{max(length, 0) * BAR_WIDTH:.1f}", height="10", fill=category_color(category))
    return element("svg", rect, width=str(BAR_WIDTH), height="10", aria_hidden="true")


def _table(titles: tuple[str, ...], rows: Any) -> str:
    head = element("thead", element("tr", *(element("th", html_text(title)) for title in titles)))
    body = (element("tr", *(element("td", html_text(cell or MISSING)) for cell in row)) for row in rows)
    return element("table", head, element("tbody", *body))


def _notes(notes: Any) -> list[str]:
    items = [element("li", html_text(note)) for note in dict.fromkeys(notes)]
    return [element("h2", "Notes"), element("ul", *items)] if items else []


def _framed(*parts: str) -> str:
    return element("div", element("style", _style()), *parts, class_="gpuledger")


@cache
def _style() -> str:
    return files("gpuledger.report").joinpath("assets", "notebook.css").read_text(encoding="utf-8")
