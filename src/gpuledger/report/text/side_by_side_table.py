"""The table with memory, time and energy side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.report.base.phrases import column_unit, share
from gpuledger.report.base.terminal import BOLD, DIM, MISSING, PLAIN, Cell, Style, TextColumn, TextTable

if TYPE_CHECKING:
    from gpuledger.analyze.step.side_by_side import GroupLine

Amount = Callable[["GroupLine"], float | None]
_TIMES: tuple[tuple[str, Amount], ...] = (
    ("forward", lambda line: line.forward_ns),
    ("backward", lambda line: line.backward_ns),
    ("optimizer", lambda line: line.optimizer_ns),
    ("evaluation", lambda line: line.evaluation_ns),
    ("all", lambda line: line.time_ns),
)


@dataclass(frozen=True)
class Units:
    """The units of time and energy: name, and number of ns or J per unit."""

    time: str = "ms"
    ns: float = 1e6
    energy: str = "J"
    joules: float = 1.0


OF_A_STEP = Units()


def units_of_samples(batch: int, step_ns: float = 0.0, step_j: float = 0.0) -> Units:
    """Return the units for one of ``batch`` samples of a step; smaller units for small values.

    ``step_ns`` and ``step_j`` are time and energy of the step, 0 if unknown.
    """
    time = ("ns/sample", 1.0) if 0 < step_ns < 1e3 * batch else ("µs/sample", 1e3)
    energy = ("µJ/sample", 1e-6) if 0 < step_j < 1e-3 * batch else ("mJ/sample", 1e-3)
    return Units(time[0], time[1] * batch, energy[0], energy[1] * batch)


def side_by_side_table(
    lines: Sequence[GroupLine],
    group_by: str,
    rows: int,
    units: Units = OF_A_STEP,
    names: Mapping[str, str] | None = None,
) -> TextTable:
    """Return the first ``rows`` lines as a table, then the sum of the others and a total. Omits columns without values.

    ``names`` replaces some labels: label -> text.
    """
    columns = [TextColumn(f"by {group_by}", shrinks=True)]
    cells: list[Callable[[Sequence[GroupLine]], list[str]]] = []
    if any(line.bytes is not None for line in lines):
        total_bytes = sum(line.bytes or 0 for line in lines)
        unit = column_unit(total_bytes)
        columns += [TextColumn(unit.name, right=True), TextColumn("share", right=True, optional=1)]
        cells.append(lambda some: _byte_cells(some, unit.amount, total_bytes))
    if any(line.time_ns is not None for line in lines):
        split = any(line.forward_ns or line.backward_ns or line.evaluation_ns for line in lines)
        shown = [(title, amount) for title, amount in _TIMES if title == "all" or (split and any(map(amount, lines)))]
        columns += [
            TextColumn(f"{title} {units.time}", right=True, optional=5 if title == "optimizer" else 3)
            for title, _ in shown
        ]
        cells.append(lambda some: [_time(_sum(some, amount) / units.ns) for _, amount in shown])
    if any(line.energy_j is not None for line in lines):
        columns += [TextColumn(units.energy, right=True), TextColumn("±", right=True, optional=4)]
        sums: tuple[Callable[[Sequence[GroupLine]], float], ...] = (
            lambda some: _sum(some, lambda one: one.energy_j),
            _off,
        )
        cells.append(lambda some: [_energy(amount(some) / units.joules) for amount in sums])
    chosen, rest = lines[:rows], lines[rows:]
    body = [_row(_label(line, names or {}), [line], cells, PLAIN) for line in chosen]
    if rest:
        body.append(_row(f"… {len(rest):,} more", rest, cells, DIM))
    body.append(_row("total", lines, cells, BOLD))
    return TextTable(tuple(columns), tuple(body))


def _label(line: GroupLine, names: Mapping[str, str]) -> str:
    label = names.get(line.label, line.label)
    return f"{label} ({line.folded})" if line.folded > 1 else label


def _row(
    label: str, lines: Sequence[GroupLine], cells: Sequence[Callable[[Sequence[GroupLine]], list[str]]], style: Style
) -> tuple[Cell, ...]:
    return (Cell(label, style), *(Cell(text, style) for make in cells for text in make(lines)))


def _byte_cells(lines: Sequence[GroupLine], amount: Callable[[int | None], str], total_bytes: int) -> list[str]:
    size = sum(line.bytes or 0 for line in lines)
    return [amount(size), share(size, total_bytes)] if size else [MISSING, MISSING]


def _sum(lines: Sequence[GroupLine], amount: Amount) -> float:
    return sum(amount(line) or 0.0 for line in lines)


def _off(lines: Sequence[GroupLine]) -> float:
    """Return the uncertainty of one line in J; 0 for several, where it is unknown."""
    return lines[0].uncertainty_j or 0.0 if len(lines) == 1 else 0.0


def _time(amount: float) -> str:
    return f"{amount:,.3f}" if amount else MISSING


def _energy(amount: float) -> str:
    if not amount:
        return MISSING
    return f"{amount:,.3f}" if amount >= 0.0005 else "< 0.001"
