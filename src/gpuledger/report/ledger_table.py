"""The table in which bytes, milliseconds and joules stand side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpuledger.report.phrases import MISSING, column_unit, share
from gpuledger.report.terminal import BOLD, DIM, Cell, Column, Table

if TYPE_CHECKING:
    from gpuledger.analyze.side_by_side import Line

Amount = Callable[["Line"], float | None]
_TIMES: tuple[tuple[str, Amount], ...] = (
    ("forward ms", lambda line: line.forward_ns),
    ("backward ms", lambda line: line.backward_ns),
    ("all ms", lambda line: line.time_ns),
)


def ledger_table(lines: Sequence[Line], word: str, rows: int) -> Table:
    """Return the first ``rows`` lines as a table, closed by the rest and a total; columns nobody has are left out."""
    columns = [Column(f"by {word}", shrinks=True)]
    cells: list[Callable[[Sequence[Line]], list[str]]] = []
    if any(line.bytes is not None for line in lines):
        total_bytes = sum(line.bytes or 0 for line in lines)
        unit = column_unit(total_bytes)
        columns += [Column(unit.name, right=True), Column("share", right=True, optional=1)]
        cells.append(lambda some: _byte_cells(some, unit.amount, total_bytes))
    if any(line.time_ns is not None for line in lines):
        split = any(line.forward_ns or line.backward_ns for line in lines)
        shown = [(title, amount) for title, amount in _TIMES if split or title == "all ms"]
        columns += [Column(title, right=True, optional=3) for title, _ in shown]
        cells.append(lambda some: [_ms(_sum(some, amount)) for _, amount in shown])
    if any(line.energy_j is not None for line in lines):
        columns += [Column("J", right=True), Column("±", right=True, optional=4)]
        cells.append(lambda some: [_joules(_sum(some, lambda line: line.energy_j)), _joules(_off(some))])
    chosen, rest = lines[:rows], lines[rows:]
    body = [_row(_label(line), [line], cells, "") for line in chosen]
    if rest:
        body.append(_row(f"… {len(rest):,} more", rest, cells, DIM))
    body.append(_row("total", lines, cells, BOLD))
    return Table(tuple(columns), tuple(body))


def _label(line: Line) -> str:
    return f"{line.label} ({line.folded})" if line.folded > 1 else line.label


def _row(
    label: str, lines: Sequence[Line], cells: Sequence[Callable[[Sequence[Line]], list[str]]], style: str
) -> tuple[Cell, ...]:
    return (Cell(label, style), *(Cell(text, style) for make in cells for text in make(lines)))


def _byte_cells(lines: Sequence[Line], amount: Callable[[int | None], str], total_bytes: int) -> list[str]:
    size = sum(line.bytes or 0 for line in lines)
    return [amount(size), share(size, total_bytes)] if size else [MISSING, MISSING]


def _sum(lines: Sequence[Line], amount: Amount) -> float:
    return sum(amount(line) or 0.0 for line in lines)


def _off(lines: Sequence[Line]) -> float:
    """Return the plus or minus of one line; that of several is not known from theirs."""
    return lines[0].uncertainty_j or 0.0 if len(lines) == 1 else 0.0


def _ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:,.3f}" if time_ns else MISSING


def _joules(energy_j: float) -> str:
    if not energy_j:
        return MISSING
    return f"{energy_j:,.3f}" if energy_j >= 0.0005 else "< 0.001"
