"""Two runs side by side in a terminal: heads, metrics that differ, rows that differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.groups import module_label
from gpuledger.report.base.phrases import Unit, column_unit, device_text, labelled_rows, place_text
from gpuledger.report.base.quantities import (
    LESS_COLOR,
    MORE_COLOR,
    metric_title,
    metric_unit,
    quantity,
    remark,
    signed,
    signed_share,
)
from gpuledger.report.base.terminal import BOLD, DIM, MISSING, PLAIN, Bar, Cell, Style, TextColumn, TextTable
from gpuledger.units import device_label, format_bytes

if TYPE_CHECKING:
    from gpuledger.analyze.compare.changes import Change
    from gpuledger.analyze.compare.diff import Diff, PlaceDiff
    from gpuledger.report.base.terminal import Terminal

Row = tuple[str | Cell | Bar, ...]
NO_DIFFERENCE = "no difference"


def diff_lines(diff: Diff, tables_by: tuple[str, ...], rows: int, terminal: Terminal) -> list[str]:
    """Return the lines of a diff. Of several devices: a table, and the one with the highest peak in full.

    Args:
        diff: The difference.
        tables_by: What the rows of each table are, such as ``module``.
        rows: Maximum rows of a table; the others are summed.
        terminal: The destination.
    """
    lines: list[str] = []
    if len(diff.places) > 1:
        lines += [*place_table(diff).lines(terminal), ""]
    place = diff.main
    lines += head_rows(place, terminal)
    if place.is_empty:
        return [*lines, "", terminal.text(NO_DIFFERENCE)]
    if place.figures:
        lines += ["", *figure_table(place).lines(terminal)]
    for group_by in tables_by:
        if place.changes(group_by):
            lines += ["", *change_table(place, group_by, rows).lines(terminal)]
    if place.time_changes():
        lines += ["", *time_table(place, rows).lines(terminal)]
    if place.energy_changes():
        lines += ["", *energy_table(place, rows).lines(terminal)]
    return lines


def head_rows(place: PlaceDiff, terminal: Terminal) -> list[str]:
    """Return the heads of both runs, aligned: name, allocated bytes at the instant, and position."""
    sides = (place.before, place.after)
    peaks = [MISSING if side.breakdown is None else format_bytes(side.breakdown.allocated_bytes) for side in sides]
    instants = ["" if side.breakdown is None else place_text(side.breakdown.instant, side.classes) for side in sides]
    wheres = [
        device_text(side.device_idx, side.device_name, side.rank_of_several)
        + (", compiled" if side.is_compiled else "")
        for side in sides
    ]
    if not any(side.breakdown for side in sides):
        peaks = ["", ""]
    cells = max(map(len, peaks))
    parts = zip((side.run for side in sides), (peak.rjust(cells) for peak in peaks), instants, wheres, strict=True)
    return labelled_rows(terminal, dict(zip(("before", "after"), parts, strict=True)))


def place_table(diff: Diff) -> TextTable:
    """Return one row per rank and device with its allocated peak in both runs."""
    columns = (
        TextColumn("rank", right=True),
        TextColumn("device"),
        TextColumn("before", right=True, optional=1),
        TextColumn("after", right=True, optional=2),
        TextColumn("change", right=True),
    )
    rows = tuple(_place_row(place) for place in diff.places)
    return TextTable(columns, rows)


def figure_table(place: PlaceDiff) -> TextTable:
    """Return the metrics that differ, one row each."""
    columns = (
        TextColumn("", shrinks=True),
        TextColumn("before", right=True, optional=1),
        TextColumn("after", right=True, optional=2),
        TextColumn("change", right=True),
        TextColumn("", right=True, optional=4),
        TextColumn("", optional=3),
    )
    return TextTable(columns, tuple(_figure_row(change) for change in place.figures))


def change_table(place: PlaceDiff, group_by: str, rows: int) -> TextTable:
    """Return the rows that differ, summed by ``group_by``, and the change of allocated bytes as the total."""
    changes = place.changes(group_by)
    sizes = [abs(size) for change in changes for size in (change.before, change.after, change.delta) if size]
    largest = max((side.breakdown.allocated_bytes for side in (place.before, place.after) if side.breakdown), default=0)
    unit = column_unit(largest or int(max(sizes)), int(max(abs(change.delta or 0) for change in changes)))
    return _change_table(f"by {group_by}", changes, unit, rows, _classes(place) if group_by == "module" else {})


def time_table(place: PlaceDiff, rows: int) -> TextTable:
    """Return the modules with another time per step, and the change of the sum."""
    changes = place.time_changes()
    longest = max(abs(size) for change in changes for size in (change.before, change.after) if size)
    unit = Unit("ms", 1_000_000) if longest >= 10_000_000 else Unit("µs", 1_000)
    return _change_table(f"time by {place.after.work_by}", changes, unit, rows, _classes(place))


def energy_table(place: PlaceDiff, rows: int) -> TextTable:
    """Return the modules with another energy per step, and the change of the sum."""
    changes = tuple(
        replace(change, before=_microjoules(change.before), after=_microjoules(change.after))
        for change in place.energy_changes()
    )
    most = max(abs(size) for change in changes for size in (change.before, change.after) if size)
    unit = Unit("J", 1_000_000) if most >= 10_000_000 else Unit("mJ", 1_000)
    return _change_table(f"energy by {place.after.work_by}", changes, unit, rows, _classes(place))


def _microjoules(energy_j: float | None) -> float | None:
    return None if energy_j is None else energy_j * 1e6


def _classes(place: PlaceDiff) -> Mapping[str, str]:
    """Return the class of every module, by its path; ``Linear → Conv2d`` if the runs differ."""
    before, after = place.before.classes, place.after.classes
    return {
        path: " → ".join(dict.fromkeys((before.get(path, name), name))) for path, name in {**before, **after}.items()
    }


def _change_table(
    title: str, changes: tuple[Change, ...], unit: Unit, rows: int, classes: Mapping[str, str]
) -> TextTable:
    """Return a table of changes, and their sum. Those within noise have one row together."""
    noise = tuple(change for change in changes if change.within_noise)
    beyond = tuple(change for change in changes if not change.within_noise)
    shown, rest = beyond[:rows], beyond[rows:]
    largest = max((abs(change.delta or 0) for change in beyond), default=0)
    body: list[Row] = [_change_row(change, module_label(change.key[0], classes), unit, largest) for change in shown]
    if rest:
        body.append(_sum_row(f"… {len(rest):,} more", rest, unit, DIM))
    if noise:
        body.append(_sum_row(f"… {len(noise):,} within noise", noise, unit, DIM))
    body.append(_sum_row("total change", changes, unit, BOLD))
    columns = (
        TextColumn(title, shrinks=True),
        TextColumn(f"before {unit.name}", right=True, optional=2),
        TextColumn(f"after {unit.name}", right=True, optional=3),
        TextColumn(f"change {unit.name}", right=True),
        TextColumn("", right=True, optional=4),
        TextColumn("", optional=1),
        TextColumn(bar=True, optional=5),
    )
    return TextTable(columns, tuple(body))


def _place_row(place: PlaceDiff) -> Row:
    before, after = (side.metrics.get("peak_allocated_bytes") for side in (place.before, place.after))
    delta = None if before is None or after is None else after.value - before.value
    devices = dict.fromkeys(device_label(side.device_idx) for side in (place.before, place.after))
    return (
        str(place.before.rank),
        " / ".join(devices),
        MISSING if before is None else format_bytes(before.value),
        MISSING if after is None else format_bytes(after.value),
        Cell(NO_DIFFERENCE if delta == 0 else signed(delta, "B"), color=_color(delta)),
    )


def _figure_row(change: Change) -> Row:
    name = change.key[0]
    unit, style = metric_unit(name), PLAIN if change.is_certain else DIM
    return (
        Cell(metric_title(name), style),
        Cell(quantity(change.before, unit), style),
        Cell(quantity(change.after, unit), style),
        _delta_cell(change, signed(change.delta, unit)),
        Cell(signed_share(change.delta, change.before), style),
        Cell(remark(change), DIM),
    )


def _change_row(change: Change, label: str, unit: Unit, largest: float) -> Row:
    style = PLAIN if change.is_certain else DIM
    delta = int(change.delta or 0)
    color = _color(delta)
    return (
        Cell(label, style),
        Cell(unit.amount(int(change.before or 0)), style),
        Cell(unit.amount(int(change.after or 0)), style),
        _delta_cell(change, _signed_amount(delta, unit)),
        Cell(signed_share(change.delta, change.before), style),
        Cell(remark(change), DIM),
        Bar(((abs(delta) / largest, color),)),
    )


def _sum_row(label: str, changes: tuple[Change, ...], unit: Unit, style: Style) -> Row:
    delta = int(sum(change.delta or 0 for change in changes))
    return (Cell(label, style), "", "", Cell(_signed_amount(delta, unit), style), "", "", "")


def _signed_amount(delta: int, unit: Unit) -> str:
    text = unit.amount(delta)
    return text if delta <= 0 or text.startswith("<") else f"+{text}"


def _delta_cell(change: Change, text: str) -> Cell:
    return Cell(text, color=_color(change.delta)) if change.is_certain else Cell(text, DIM)


def _color(delta: float | None) -> str:
    return "" if not delta else MORE_COLOR if delta > 0 else LESS_COLOR
