"""Tables of accounts, of several ranks, and of the balance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuledger.analyze.balance import HISTORY, NVML_MEMORY, NVML_PROCESSES
from gpuledger.analyze.groups import UNNAMED, Group, group_accounts, label_of
from gpuledger.model.accounts import ROUNDING
from gpuledger.report.colors import category_color
from gpuledger.report.phrases import MISSING, device_label, labelled, percent, place_of, share, short_bytes
from gpuledger.report.terminal import BOLD, DIM, Bar, Cell, Column, Table, Terminal
from gpuledger.units import format_bytes, format_ns

if TYPE_CHECKING:
    from gpuledger.analyze.balance import Balance
    from gpuledger.analyze.breakdown import Account, Breakdown
    from gpuledger.analyze.ranks import Imbalance
    from gpuledger.report.document import View

Row = tuple[str | Cell | Bar, ...]
CLOSED_LINES = ("used", "allocated", "remainder")
"""Lines of the balance that are sums or differences of others."""
SHORT_SOURCES = {HISTORY: "allocator history", NVML_MEMORY: "NVML memory", NVML_PROCESSES: "NVML processes"}
BALANCE_COLUMNS = (
    Column(),
    Column("bytes", right=True),
    Column("share", right=True, optional=1),
    Column("source", optional=2),
    Column("note", optional=3),
)


def group_table(books: Breakdown, word: str, rows: int) -> Table:
    """Return the accounts as a table with one row per ``word``, closed by a total."""
    groups = group_accounts(books.accounts, word)
    shown, rest = groups[:rows], groups[rows:]
    largest = max((group.bytes for group in groups), default=1) or 1
    stacked, total = word != "category", books.allocated_bytes
    body: list[Row] = [_group_row(group, total, largest, stacked) for group in shown]
    if rest:
        left = sum(group.bytes for group in rest)
        body.append(_sum_row(f"… {len(rest):,} more", left, total, DIM, blanks=1 + stacked, at_end=True))
    body.append(_sum_row("total", total, total, BOLD, blanks=1 + stacked, at_end=True))
    columns = (
        Column(f"by {word}", shrinks=True),
        Column("bytes", right=True),
        Column("share", right=True),
        *((Column("mostly", optional=1),) if stacked else ()),
        Column(bar=True, optional=2),
    )
    return Table(columns, tuple(body))


def tensor_table(books: Breakdown, rows: int) -> Table:
    """Return the accounts as a table with one row per tensor name and category, closed by a total.

    What has no name goes by its module.
    """
    shown, rest = books.accounts[:rows], books.accounts[rows:]
    total = books.allocated_bytes
    body: list[Row] = [_tensor_row(account, total) for account in shown]
    if rest:
        left = sum(account.bytes for account in rest)
        body.append(_sum_row(f"… {len(rest):,} more", left, total, DIM, blanks=2, at_end=False))
    body.append(_sum_row("total", total, total, BOLD, blanks=2, at_end=False))
    columns = (
        Column("by tensor", shrinks=True),
        Column("category", optional=1),
        Column("blocks", right=True, optional=2),
        Column("bytes", right=True),
        Column("share", right=True),
    )
    return Table(columns, tuple(body))


def rank_table(views: Sequence[View]) -> Table:
    """Return one row per rank and device with peak, reserved bytes, largest category and step time."""
    columns = (
        Column("rank", right=True),
        Column("device"),
        Column("peak", right=True),
        Column("of card", right=True, optional=2),
        Column("reserved", right=True, optional=1),
        Column("most", optional=3),
        Column("step time", right=True, optional=4),
    )
    return Table(columns, tuple(_rank_row(view) for view in views))


def imbalance_line(imbalance: Imbalance) -> str:
    """Return the sentence that names how uneven the ranks are."""
    if imbalance.ratio < 1.005:
        return f"balanced: every rank's peak is within 0.5 % of the mean, {format_bytes(imbalance.mean_bytes)}"
    where = f"rank {imbalance.rank} ({device_label(imbalance.device_idx)})"
    return (
        f"imbalance {imbalance.ratio:.2f}: {where} peaks at {format_bytes(imbalance.highest_bytes)}, "
        f"the mean is {format_bytes(imbalance.mean_bytes)}"
    )


def balance_lines(rank: int, balance: Balance, terminal: Terminal) -> list[str]:
    """Return the balance of one device: a head, one row per line, a total that closes it, and why lines are missing."""
    device_idx, whole = balance.instant.device_idx, balance.total_bytes
    where = " · ".join(part for part in (f"rank {rank}", device_label(device_idx), balance.card) if part)
    head = labelled(terminal, balance.instant.label, [place_of(balance.instant), where])
    card = "memory" if device_idx < 0 else "card"
    rows = [_balance_row(card, whole, whole, "capacity", "", BOLD)]
    for line in balance.lines:
        style = BOLD if line.name in CLOSED_LINES else ""
        note = "" if line.bytes is None else line.note
        rows.append(_balance_row("  " * (line.level + 1) + line.name, line.bytes, whole, line.source, note, style))
    table = Table(BALANCE_COLUMNS, (*rows, _closing_row(balance)))
    return [*head, "", *table.lines(terminal), *_missing_lines(balance, terminal)]


def _missing_lines(balance: Balance, terminal: Terminal) -> list[str]:
    """Return why lines have no number, one paragraph per reason."""
    reasons: dict[str, list[str]] = {}
    for line in balance.lines:
        if line.bytes is None:
            reasons.setdefault(line.note or "not measured", []).append(line.name)
    texts = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return [line for text in texts for line in terminal.paragraph(text, f"{terminal.text(MISSING)}      ", 7)]


def _group_row(group: Group, total: int, largest: int, stacked: bool) -> Row:
    bar = Bar(tuple((size / largest, category_color(name)) for name, size in group.by_category))
    numbers = (format_bytes(group.bytes), share(group.bytes, total))
    if not stacked:
        return (Cell(group.label, color=category_color(group.label)), *numbers, bar)
    name, size = group.by_category[0]
    mostly = "" if name == ROUNDING else f"{name} {percent(size, group.bytes)}" if len(group.by_category) > 1 else name
    return (group.label, *numbers, Cell(mostly, color=category_color(name)), bar)


def _sum_row(label: str, size: int, total: int, style: str, *, blanks: int, at_end: bool) -> Row:
    """Return a row that sums others, with empty cells before or after its numbers."""
    numbers = (Cell(format_bytes(size), style), Cell(share(size, total), style))
    empty: Row = ("",) * blanks
    return (Cell(label, style), *numbers, *empty) if at_end else (Cell(label, style), *empty, *numbers)


def _tensor_row(account: Account, total: int) -> Row:
    named = account.name or account.category == ROUNDING
    return (
        label_of(account, "tensor") if named else f"{label_of(account, 'module')} {UNNAMED}",
        Cell("" if account.category == ROUNDING else account.category, color=category_color(account.category)),
        f"{account.blocks:,}",
        format_bytes(account.bytes),
        share(account.bytes, total),
    )


def _rank_row(view: View) -> Row:
    summary, books = view.summary, view.breakdown
    top = group_accounts(books.accounts, "category")[0]
    return (
        str(summary.rank),
        device_label(summary.device_idx),
        format_bytes(summary.peak_allocated_bytes),
        share(summary.peak_allocated_bytes, summary.capacity_bytes),
        format_bytes(summary.peak_reserved_bytes),
        Cell(f"{top.label} {percent(top.bytes, books.allocated_bytes)}", color=category_color(top.label)),
        MISSING if summary.step_time.median_ns is None else format_ns(summary.step_time.median_ns),
    )


def _closing_row(balance: Balance) -> Row:
    """Return the row that says what the lines inside ``used`` sum to, and whether the card reports the same."""
    total = sum(line.bytes or 0 for line in balance.lines if line.level == 1)
    if balance.used_bytes is None:
        note = "what the allocator holds; there is no reading to close it against"
    else:
        left = balance.used_bytes - total
        note = "equals used" if left == 0 else f"differs from used by {short_bytes(left)}"
    return _balance_row("    total", total, balance.total_bytes, "sum of the lines", note, BOLD)


def _balance_row(name: str, size: int | None, whole: int | None, source: str, note: str, style: str = "") -> Row:
    short = SHORT_SOURCES.get(source, source)
    number = Cell(short_bytes(size), style)
    return (Cell(name, style), number, share(size, whole), Cell(short, DIM), Cell(note, DIM))
