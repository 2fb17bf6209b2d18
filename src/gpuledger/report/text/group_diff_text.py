"""Two groups of runs in a terminal: means, the difference with its confidence interval, and a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger.analyze.compare.group_diff import MODULE
from gpuledger.analyze.compare.metrics import KINDS
from gpuledger.analyze.memory.groups import module_label
from gpuledger.report.base.phrases import device_text, labelled_rows
from gpuledger.report.base.quantities import LESS_COLOR, MORE_COLOR, quantity, signed, signed_share
from gpuledger.report.base.terminal import DIM, PLAIN, Cell, TextColumn, TextTable
from gpuledger.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuledger.analyze.compare.group_diff import GroupChange, GroupDiff
    from gpuledger.report.base.terminal import Bar, Terminal

NO_SIGNIFICANT_DIFFERENCE = "no significant difference"
NO_DIFFERENCE, SIGNIFICANT, NOT_SIGNIFICANT = "no difference", "significant", "not significant"


def group_diff_lines(diff: GroupDiff, rows: int, terminal: Terminal) -> list[str]:
    """Return the lines of a comparison of two groups: the groups, the metrics, and up to ``rows`` modules."""
    groups = {
        "before": (diff.before, device_text(diff.device_idx, diff.device_name, diff.rank_of_several)),
        "after": (diff.after, device_text(diff.after_device_idx, diff.after_device_name, diff.rank_of_several)),
    }
    heads = {label: (counted(len(names), "run"), ", ".join(names), device) for label, (names, device) in groups.items()}
    lines = [*labelled_rows(terminal, heads), ""]
    lines += _table("", diff.figures, diff, {}).lines(terminal)
    if diff.modules:
        lines += ["", *_table("time by module", diff.modules[:rows], diff, diff.classes).lines(terminal)]
        rest = diff.modules[rows:]
        if rest:
            significant = sum(change.is_significant for change in rest)
            lines.append(terminal.text(f"… {len(rest):,} more, {significant} of them significant"))
    if not diff.is_significant:
        lines += ["", terminal.text(NO_SIGNIFICANT_DIFFERENCE)]
    return lines


def verdict_of(change: GroupChange) -> str:
    """Return whether a difference is significant, in words."""
    interval = change.interval
    if interval.low == interval.high == 0:
        return NO_DIFFERENCE
    busy = " (host busy)" if change.interval.is_significant and change.host_was_busy else ""
    return SIGNIFICANT if change.is_significant else NOT_SIGNIFICANT + busy


def _table(title: str, changes: Sequence[GroupChange], diff: GroupDiff, classes: Mapping[str, str]) -> TextTable:
    columns = (
        TextColumn(title, shrinks=True),
        TextColumn("before", right=True, optional=2),
        TextColumn("after", right=True, optional=3),
        TextColumn("change", right=True),
        TextColumn(f"{diff.confidence:.0%} interval".replace("%", " %"), right=True, optional=1),
        TextColumn("", right=True, optional=4),
        TextColumn(""),
    )
    return TextTable(columns, tuple(_row(change, classes) for change in changes))


def _row(change: GroupChange, classes: Mapping[str, str]) -> tuple[str | Cell | Bar, ...]:
    style = PLAIN if change.is_significant else DIM
    delta, unit = change.interval.delta, change.unit
    color = "" if not change.is_significant else MORE_COLOR if delta > 0 else LESS_COLOR
    path = change.name.removeprefix(MODULE)
    interval = (
        f"{signed(_rounded(change.interval.low, unit), unit)} to {signed(_rounded(change.interval.high, unit), unit)}"
    )
    return (
        Cell(KINDS[change.name].title if change.name in KINDS else module_label(path, classes), style),
        Cell(quantity(_rounded(change.before_mean, unit), unit), style),
        Cell(quantity(_rounded(change.after_mean, unit), unit), style),
        Cell(signed(_rounded(delta, unit), unit), style, color),
        Cell(interval, style),
        Cell(signed_share(delta, change.before_mean), style),
        Cell(verdict_of(change), style),
    )


def _rounded(value: float, unit: str) -> float:
    """Return bytes and nanoseconds as whole numbers."""
    return round(value) if unit in ("B", "ns") else value
