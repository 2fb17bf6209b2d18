"""Tables of memory by category, module or tensor, of several ranks, and of the balance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.groups import UNNAMED, Group, group_accounts, label_of, module_label
from gpuledger.analyze.memory.lines.source_lines import NO_STACKS, WITHOUT_LINE
from gpuledger.analyze.overview.balance import (
    DISPATCH,
    FILE,
    HISTORY,
    NVML_IN_PROCESS,
    NVML_MEMORY,
    NVML_PROCESSES,
    BalanceLine,
)
from gpuledger.analyze.overview.ranks import LEAST_BYTES, LEAST_FRAC, Imbalance
from gpuledger.model.accounts import ROUNDING
from gpuledger.report.base.colors import category_color
from gpuledger.report.base.phrases import (
    Unit,
    allocated_text,
    column_unit,
    device_text,
    entry,
    instant_title,
    percent,
    share,
)
from gpuledger.report.base.terminal import BOLD, DIM, MISSING, PLAIN, Bar, Cell, Style, Terminal, TextColumn, TextTable
from gpuledger.units import device_label, format_bytes, format_frac, format_ns

if TYPE_CHECKING:
    from gpuledger.analyze.memory.breakdown import Account, Breakdown
    from gpuledger.analyze.overview.balance import Balance
    from gpuledger.analyze.view.device_view import DeviceView

Row = tuple[str | Cell | Bar, ...]
CLOSED_LINES = ("capacity", "used", "allocated", "unaccounted", "total")
"""Lines of the balance that are sums or differences of others, shown in bold."""
CATEGORY_LEVEL = 2
SHORT_SOURCES = {
    HISTORY: "allocator history",
    DISPATCH: "dispatcher",
    FILE: "imported file",
    NVML_MEMORY: "NVML memory",
    NVML_PROCESSES: "NVML processes",
    NVML_IN_PROCESS: "NVML, this process",
}


@dataclass(frozen=True)
class Scale:
    """Formats the sizes of a table: all in one unit, and as shares of one total."""

    unit: Unit
    whole_bytes: int | None

    def cells(self, size_bytes: int | None, style: Style = PLAIN) -> tuple[Cell, Cell]:
        """Return the size and its share."""
        amount, fraction = self.unit.amount(size_bytes), share(size_bytes, self.whole_bytes)
        return Cell(amount, style), Cell(fraction, style)


def group_table(breakdown: Breakdown, group_by: str, rows: int, classes: Mapping[str, str]) -> TextTable:
    """Return a breakdown as a table with one row per ``group_by`` and a total. ``classes`` is module path -> class."""
    groups = group_accounts(breakdown.accounts, group_by)
    shown, rest = groups[:rows], groups[rows:]
    total = breakdown.allocated_bytes
    scale, largest = Scale(column_unit(total), total), max([1, *(group.bytes for group in groups)])
    blanks = ("",) if group_by == "category" else ("", "")
    named = classes if group_by == "module" else {}
    body: list[Row] = [
        _category_row(group, scale, largest)
        if group_by == "category"
        else _stacked_row(group, module_label(group.label, named), scale, largest)
        for group in shown
    ]
    if rest:
        left = sum(group.bytes for group in rest)
        body.append((Cell(f"… {len(rest):,} more", DIM), *scale.cells(left, DIM), *blanks))
    body.append((Cell("total", BOLD), *scale.cells(total, BOLD), *blanks))
    columns = (
        TextColumn(f"by {group_by}", shrinks=True),
        TextColumn(scale.unit.name, right=True),
        TextColumn("share", right=True),
        *(() if group_by == "category" else (TextColumn("mostly", optional=1),)),
        TextColumn(bar=True, optional=2),
    )
    return TextTable(columns, tuple(body))


def tensor_table(breakdown: Breakdown, rows: int, classes: Mapping[str, str]) -> TextTable:
    """Return a breakdown as a table with one row per tensor name, source line and category, and a total.

    Tensors without a name are shown by module. ``classes`` is module path -> class.
    """
    shown, rest = breakdown.accounts[:rows], breakdown.accounts[rows:]
    total = breakdown.allocated_bytes
    scale = Scale(column_unit(total), total)
    body: list[Row] = [_tensor_row(account, scale, classes) for account in shown]
    if rest:
        left = sum(account.bytes for account in rest)
        body.append((Cell(f"… {len(rest):,} more", DIM), "", "", "", *scale.cells(left, DIM)))
    body.append((Cell("total", BOLD), "", "", "", *scale.cells(total, BOLD)))
    columns = [
        TextColumn("by tensor", shrinks=True),
        TextColumn("line", optional=1),
        TextColumn("category", optional=2),
        TextColumn("blocks", right=True, optional=3),
        TextColumn(scale.unit.name, right=True),
        TextColumn("share", right=True),
    ]
    if all(account.line in WITHOUT_LINE for account in shown):
        del columns[1]
        body = [(row[0], *row[2:]) for row in body]
    return TextTable(tuple(columns), tuple(body))


def rank_table(views: Sequence[DeviceView]) -> TextTable:
    """Return one row per rank and device with peak, reserved bytes, largest category and step time."""
    columns = (
        TextColumn("rank", right=True),
        TextColumn("device"),
        TextColumn("peak", right=True),
        TextColumn("of GPU", right=True, optional=2),
        TextColumn("reserved", right=True, optional=1),
        TextColumn("largest category", optional=3),
        TextColumn("step time", right=True, optional=4),
    )
    return TextTable(columns, tuple(_rank_row(view) for view in views))


def imbalance_line(imbalance: Imbalance) -> str:
    """Return a sentence on the imbalance of the ranks."""
    if imbalance.is_balanced:
        near = format_frac(LEAST_FRAC, 0) if imbalance.ratio <= 1 + LEAST_FRAC else format_bytes(LEAST_BYTES)
        return f"balanced: the highest peak is within {near} of the mean, {format_bytes(imbalance.mean_bytes)}"
    return (
        f"unbalanced: rank {imbalance.rank} ({device_label(imbalance.device_idx)}) has the highest peak, "
        f"{format_bytes(imbalance.highest_bytes)}, {format_frac(imbalance.ratio - 1)} above the mean of "
        f"{format_bytes(imbalance.mean_bytes)}"
    )


def balance_lines(
    rank: int | None, balance: Balance, terminal: Terminal, classes: Mapping[str, str] | None = None
) -> list[str]:
    """Return the balance of one device: a head, one row per line, their sum, and the reasons of missing values.

    ``rank`` is None if the program has one process.
    """
    device_idx, whole = balance.instant.device_idx, balance.total_bytes
    allocated = sum(line.bytes or 0 for line in balance.lines if line.name == "allocated")
    device = device_text(device_idx, balance.device_name, rank)
    head = entry(terminal, instant_title(balance.instant), allocated_text(allocated, balance.instant, device, classes))
    scale = Scale(column_unit(allocated), whole)
    capacity = [BalanceLine("capacity", whole, -1, "", "")] if device_idx >= 0 else []
    lines = (*capacity, *balance.lines, _closing_line(balance))
    top = min(line.level for line in lines)
    rows = tuple(_balance_row(line, line.level - top, scale) for line in lines)
    columns = (
        TextColumn(),
        TextColumn(scale.unit.name, right=True),
        TextColumn("share", right=True, optional=1),
        TextColumn("source", optional=2),
        TextColumn("note", optional=3),
    )
    return [*head, "", *TextTable(columns, rows).lines(terminal), *_missing_lines(balance, terminal)]


def _missing_lines(balance: Balance, terminal: Terminal) -> list[str]:
    """Return why lines have no value, one paragraph per reason."""
    reasons: dict[str, list[str]] = {}
    for line in balance.lines:
        if line.bytes is None:
            reasons.setdefault(line.note or "not measured", []).append(_line_name(line))
    texts = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return [line for text in texts for line in entry(terminal, terminal.text(MISSING), text)]


def _line_name(line: BalanceLine) -> str:
    """Return a line's label. Categories are not changed."""
    return line.name if line.level == CATEGORY_LEVEL else line.name.replace("_", " ")


def _category_row(group: Group, scale: Scale, largest: int) -> Row:
    color = category_color(group.label)
    return (Cell(group.label, color=color), *scale.cells(group.bytes), Bar(((group.bytes / largest, color),)))


def _stacked_row(group: Group, label: str, scale: Scale, largest: int) -> Row:
    """Return a row with a bar divided by category, and the largest category as text."""
    bar = Bar(tuple((size / largest, category_color(name)) for name, size in group.by_category))
    name, size = group.by_category[0]
    mostly = name if len(group.by_category) == 1 else f"{name} {percent(size, group.bytes)}"
    text = "" if name == ROUNDING else mostly
    return (label, *scale.cells(group.bytes), Cell(text, color=category_color(name)), bar)


def _tensor_row(account: Account, scale: Scale, classes: Mapping[str, str]) -> Row:
    named = account.name or account.category == ROUNDING
    return (
        label_of(account, "tensor") if named else f"{module_label(account.module, classes)} {UNNAMED}",
        "" if account.line == NO_STACKS else account.line,
        Cell("" if account.category == ROUNDING else account.category, color=category_color(account.category)),
        f"{account.blocks:,}",
        *scale.cells(account.bytes),
    )


def _rank_row(view: DeviceView) -> Row:
    summary, breakdown = view.summary, view.breakdown
    reserved = summary.recorded_peak_reserved_bytes
    top = group_accounts(breakdown.accounts, "category")[0]
    return (
        str(summary.rank),
        device_label(summary.device_idx),
        format_bytes(summary.recorded_peak_allocated_bytes),
        share(summary.recorded_peak_allocated_bytes, summary.capacity_bytes),
        MISSING if reserved is None or summary.device_idx < 0 else format_bytes(reserved),
        Cell(f"{top.label} {percent(top.bytes, breakdown.allocated_bytes)}", color=category_color(top.label)),
        MISSING if summary.step_time.median_ns is None else format_ns(summary.step_time.median_ns),
    )


def _closing_line(balance: Balance) -> BalanceLine:
    """Return the sum of the lines inside ``used``, with a note whether it equals the GPU's value."""
    total = sum(line.bytes or 0 for line in balance.lines if line.level == 1)
    if balance.instant.device_idx < 0:
        note = ""
    elif balance.used_bytes is None:
        note = "memory of the allocator; used memory was not read"
    else:
        left = balance.used_bytes - total
        note = "equal to used" if left == 0 else f"differs from used by {format_bytes(left)}"
    return BalanceLine("total", total, 1, "sum of the lines", note)


def _balance_row(line: BalanceLine, depth: int, scale: Scale) -> Row:
    style = BOLD if line.name in CLOSED_LINES else PLAIN
    name = "  " * depth + _line_name(line)
    source = SHORT_SOURCES.get(line.source, line.source)
    note = "" if line.bytes is None else line.note
    amount, fraction = scale.cells(line.bytes)
    return (Cell(name, style), Cell(amount.text, style), fraction, Cell(source, DIM), Cell(note, DIM))
