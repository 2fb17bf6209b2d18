"""A comparison of runs as a table for a terminal, JSON, CSV or Markdown."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.compare.compare import FIGURES
from gpuledger.report.base.quantities import LESS_COLOR, MORE_COLOR
from gpuledger.report.base.terminal import DIM, MISSING, PLAIN, Cell, Terminal, TextColumn, TextTable
from gpuledger.units import decimals_for, format_bytes, format_joules, format_ns, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuledger.analyze.compare.compare import ComparedRun, Comparison

MIB = 1 << 20
TITLES = {
    "peak_bytes": "peak",
    "mean_active_bytes": "mean active",
    "area_mib_s": "MiB·s",
    "duration_s": "duration",
    "active_s": "active",
    "step_time_ns": "step time",
    "step_energy_j": "energy per step",
    "energy_j": "energy",
    "mean_power_w": "mean W",
    "peak_power_w": "peak W",
    "throttled_s": "throttled",
}
_OPTIONAL = {
    "peak_power_w": 10,
    "mean_power_w": 9,
    "active_s": 8,
    "throttled_s": 7,
    "area_mib_s": 6,
    "energy_j": 5,
    "mean_active_bytes": 4,
    "duration_s": 3,
    "step_energy_j": 2,
}
"""On a narrow terminal, the column with the highest number is left out first."""


def comparison_lines(comparison: Comparison, terminal: Terminal) -> list[str]:
    """Return the table: a row for each GPU of each run, each value with its ratio to the first row."""
    shown = _shown(comparison)
    columns = [TextColumn("", shrinks=True)]
    for name in shown:
        columns.append(TextColumn(TITLES[name], right=True, optional=_OPTIONAL.get(name, 0)))
        columns.append(TextColumn("", right=True, optional=_OPTIONAL.get(name, 1)))
    columns.append(TextColumn("", optional=1))
    rows = tuple(_row(row, shown, first=number == 0) for number, row in enumerate(comparison.rows))
    return TextTable(tuple(columns), rows).lines(terminal)


def comparison_document(comparison: Comparison) -> list[dict[str, Any]]:
    """Return an object for each GPU of each run: values in base units, and their ratios to the first."""
    return [
        {**asdict(row.figures), "ratio_to_first": row.ratio_to_first, "repeats": row.repeats, "spread": row.spread}
        for row in comparison.rows
    ]


def comparison_csv(comparison: Comparison) -> str:
    """Return CSV with a header: values in base units, empty if missing."""
    stream = io.StringIO()
    facts = ("name", "device_idx", "exit_status", "samples", "baseline_bytes", "energy_uncertainty_j")
    writer = csv.writer(stream, lineterminator="\n")
    bounds = [f"{name}_{which}" for name in FIGURES for which in ("lowest", "highest")]
    titles = (f"{name}_ratio_to_first" for name in FIGURES)
    writer.writerow([*facts[:2], *FIGURES, *facts[2:], *titles, "repeats", *bounds])
    for row in comparison.rows:
        values = [getattr(row.figures, name) for name in (*facts[:2], *FIGURES, *facts[2:])]
        spread = [value for name in FIGURES for value in row.spread.get(name, (None, None))]
        cells = (*values, *row.ratio_to_first.values(), row.repeats, *spread)
        writer.writerow(["" if value is None else value for value in cells])
    return stream.getvalue()


def comparison_markdown(comparison: Comparison) -> str:
    """Return a table in Markdown, each value with its ratio to the first in brackets."""
    shown = _shown(comparison)
    lines = [_line(["run", *(TITLES[name] for name in shown)]), _line(["---", *["---:"] * len(shown)])]
    for number, row in enumerate(comparison.rows):
        cells = []
        for name in shown:
            times = _times(row.ratio_to_first[name]) if number else ""
            cells.append(_amount(row, name) + (f" ({times})" if times else ""))
        remark = _remark(row)
        lines.append(_line([_escaped(row.figures.name) + (f" ({remark})" if remark else ""), *cells]))
    return "\n".join(lines) + "\n"


def _shown(comparison: Comparison) -> list[str]:
    """Return the columns that have a value; the active time only if it differs from the duration."""
    names = [name for name in FIGURES if any(row.value(name) is not None for row in comparison.rows)]
    if "active_s" in names and all(row.figures.active_s == row.figures.duration_s for row in comparison.rows):
        names.remove("active_s")
    return names


def _row(row: ComparedRun, shown: Sequence[str], *, first: bool) -> tuple[str | Cell, ...]:
    cells: list[str | Cell] = [row.figures.name]
    for name in shown:
        times = row.ratio_to_first[name]
        color = "" if times is None or 0.95 < times < 1.05 else MORE_COLOR if times > 1 else LESS_COLOR
        cells += [_amount(row, name), Cell("" if first else _times(times), PLAIN if color else DIM, color)]
    return (*cells, Cell(_remark(row), color=MORE_COLOR))


def _remark(row: ComparedRun) -> str:
    """Return how the command ended, if it failed."""
    status = row.figures.exit_status
    return f"exit status {status}" if status else ""


def _times(times: float | None) -> str:
    """Return a ratio, ``×10.0``, ``×0.42``; "" if unknown."""
    if times is None:
        return ""
    return f"×{times:,.0f}" if times >= 100 else f"×{times:.1f}" if times >= 10 else f"×{times:.2f}"


def _amount(row: ComparedRun, name: str) -> str:
    value = row.value(name)
    if value is None:
        return MISSING
    to_text = _FORMATS[FIGURES[name]]
    uncertainty = row.figures.energy_uncertainty_j if name == "energy_j" else None
    if name in row.spread:
        low, high = row.spread[name]
        uncertainty = (high - low) / 2
    return to_text(value, uncertainty)


def bytes_in_mib(value_bytes: float, half_bytes: float | None = None) -> str:
    """Return large sizes in MiB, ``6,247 MiB``, ``195.6 MiB``, as in older logs; ``195.6 ± 0.4 MiB`` with a spread."""
    mib = value_bytes / MIB
    if half_bytes is not None:
        decimals = decimals_for(half_bytes / MIB, 1)
        return f"{mib:,.{decimals}f} ± {half_bytes / MIB:,.{decimals}f} MiB"
    if mib < 1:
        return format_bytes(value_bytes)
    return f"{mib:,.0f} MiB" if mib.is_integer() else f"{mib:,.1f} MiB"


def _without_unit(value: float, half: float | None, decimals: int) -> str:
    if half is None:
        return f"{value:,.{decimals}f}"
    shown = decimals_for(half, decimals)
    return f"{value:,.{shown}f} ± {half:,.{shown}f}"


_FORMATS: dict[str, Callable[[float, float | None], str]] = {
    "B": bytes_in_mib,
    "MiB·s": lambda value, half: _without_unit(value, half, 0 if value >= 100 else 2),
    "s": format_seconds,
    "ns": lambda value, half: format_ns(round(value), half),
    "J": format_joules,
    "W": lambda value, half: _without_unit(value, half, 1),
}


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(name: str) -> str:
    """Return a name escaped for a Markdown cell."""
    safe = "".join(f"\\{one}" if one in "\\`*[]<>|~" else one for one in name)
    return " ".join(safe.split())
