"""The live view as lines of text: GPUs, history, breakdown and keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.groups import Group, group_accounts
from gpuledger.report.base.colors import category_color
from gpuledger.report.base.phrases import column_unit, percent, place_of, share
from gpuledger.report.base.terminal import BOLD, DIM, MISSING, Bar, Cell, Terminal, TextColumn, TextTable
from gpuledger.report.text.growth_text import growth_rate_text, growth_text
from gpuledger.units import format_bytes, format_frac, format_joules, format_ns

if TYPE_CHECKING:
    from gpuledger.live.gauges import Gauge
    from gpuledger.live.watched_run import RunNow

HISTORY = 240
MOST_GROWTH = 2
"""Number of devices with growing memory that are shown."""
LEVELS, ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
KEYS = "q quit   b by category/module   s by size/name   d record memory now"
_CARD_COLOR = "#4e79a7"


@dataclass
class ScreenChoice:
    """What the reader has chosen."""

    group_by: str = "category"
    by_name: bool = False

    def press(self, key: str) -> bool:
        """Change the choice by a key; return whether the view goes on."""
        if key == "b":
            self.group_by = "module" if self.group_by == "category" else "category"
        elif key == "s":
            self.by_name = not self.by_name
        return key not in ("q", "\x03", "\x04")


@dataclass
class History:
    """Used bytes of each GPU at the last samples."""

    rows: list[list[int]] = field(default_factory=list)

    def add(self, gauges: Sequence[Gauge]) -> None:
        """Keep one more reading."""
        while len(self.rows) < len(gauges):
            self.rows.append([])
        for row, gauge in zip(self.rows, gauges, strict=True):
            row.append(gauge.used_bytes or 0)
            del row[:-HISTORY]


def frame(
    gauges: Sequence[Gauge],
    history: History,
    run: RunNow | None,
    now_ns: int,
    choice: ScreenChoice,
    terminal: Terminal,
    rows: int,
) -> list[str]:
    """Return the lines of one frame, at most ``rows`` of them, none wider than the terminal."""
    lines = [_head(run, now_ns, terminal), *_card_lines(gauges, history, terminal), *_growth_lines(run, terminal)]
    room = max(rows - len(lines) - 4, 1)
    if run is not None:
        lines += ["", *_account_lines(run, choice, room, terminal)]
    keys = terminal.text(KEYS)
    return [*lines[: rows - 1], terminal.styled(_cut(keys, terminal), DIM)]


def one_line(gauges: Sequence[Gauge], run: RunNow | None, clock: str) -> str:
    """Return one reading as one line, for a log."""
    parts = [clock, *(f"{gauge.name} {_bytes_of(gauge)} {_sensors(gauge)}" for gauge in gauges)]
    if run is not None:
        parts.append(f"{run.name} {run.status}")
        if run.breakdown is not None:
            parts.append(f"step {run.step} peak {format_bytes(run.breakdown.allocated_bytes)}")
        parts += [f"memory grows, {growth_rate_text(one)}" for one in run.growth[:MOST_GROWTH]]
    return " | ".join(parts)


def _head(run: RunNow | None, now_ns: int, terminal: Terminal) -> str:
    if run is None:
        return terminal.styled("gpuledger live", BOLD)
    since = format_ns(now_ns - run.started_ns) if run.started_ns else ""
    parts = [run.name, run.status, since if run.status == "running" else ""]
    text = terminal.text("gpuledger live · " + " · ".join(part for part in parts if part))
    return terminal.styled(_cut(text, terminal), BOLD)


def _card_lines(gauges: Sequence[Gauge], history: History, terminal: Terminal) -> list[str]:
    if not gauges:
        return []
    columns = (
        TextColumn("GPU", shrinks=True),
        TextColumn("used of all", right=True),
        TextColumn("", right=True, optional=2),
        TextColumn("power", right=True, optional=1),
        TextColumn("", right=True, optional=3),
        TextColumn("busy", right=True, optional=3),
        TextColumn("so far", right=True, optional=2),
        TextColumn(bar=True, optional=4),
    )
    lines = TextTable(columns, tuple(_card_row(number, gauge) for number, gauge in enumerate(gauges))).lines(terminal)
    width = min((terminal.width_cells or 80), HISTORY + 8)
    return [
        *lines,
        *(_history_line(number, row, gauges[number], width, terminal) for number, row in enumerate(history.rows)),
    ]


def _card_row(number: int, gauge: Gauge) -> tuple[str | Cell | Bar, ...]:
    used, total = gauge.used_bytes, gauge.total_bytes
    used_frac = used / total if used is not None and total else 0.0
    return (
        f"{number} {gauge.name}",
        f"{_bytes_of(gauge):>22}",
        f"{percent(used, total):>7}",
        f"{_watts(gauge):>7}",
        f"{MISSING if gauge.temperature_c is None else f'{gauge.temperature_c} °C':>6}",
        f"{MISSING if gauge.busy_frac is None else format_frac(gauge.busy_frac, 0):>5}",
        f"{format_joules(gauge.energy_j):>10}",
        Bar(((used_frac, _CARD_COLOR),)),
    )


def _history_line(number: int, row: Sequence[int], gauge: Gauge, width: int, terminal: Terminal) -> str:
    """Return the GPU's memory at the last samples as a line of bars, relative to its capacity."""
    levels = LEVELS if terminal.unicode else ASCII_LEVELS
    whole = max(gauge.total_bytes or 0, *row, 1)
    label = f"{number} "
    marks = "".join(
        levels[min(int(used / whole * len(levels)), len(levels) - 1)] for used in row[-(width - len(label)) :]
    )
    return label + terminal.painted(marks, _CARD_COLOR)


def _growth_lines(run: RunNow | None, terminal: Terminal) -> list[str]:
    """Return a line for each device with memory that grows, the first :data:`MOST_GROWTH` of them."""
    growth = () if run is None else run.growth[:MOST_GROWTH]
    return [_cut(terminal.text(f"Memory grows: {growth_text(one)}"), terminal) for one in growth]


def _account_lines(run: RunNow, choice: ScreenChoice, room: int, terminal: Terminal) -> list[str]:
    if run.breakdown is None:
        return terminal.paragraph(run.note)
    groups = list(group_accounts(run.breakdown.accounts, choice.group_by))
    if choice.by_name:
        groups.sort(key=lambda group: group.label)
    shown, rest = groups[:room], groups[room:]
    total = run.breakdown.allocated_bytes
    unit, largest = column_unit(total), max(group.bytes for group in groups)
    body: list[tuple[str | Cell | Bar, ...]] = [
        _group_row(group, total, largest, unit.amount(group.bytes)) for group in shown
    ]
    if rest:
        left = sum(group.bytes for group in rest)
        body.append((f"… {len(rest):,} more", unit.amount(left), share(left, total), ""))
    columns = (
        TextColumn(f"by {choice.group_by}", shrinks=True),
        TextColumn(unit.name, right=True),
        TextColumn("share", right=True),
        TextColumn(bar=True, optional=1),
    )
    head = terminal.text(f"peak {format_bytes(total)} · {place_of(run.breakdown.instant)}")
    return [_cut(head, terminal), *TextTable(columns, tuple(body)).lines(terminal)]


def _group_row(group: Group, total: int, largest: int, amount: str) -> tuple[str | Cell | Bar, ...]:
    bar = Bar(tuple((size / largest, category_color(name)) for name, size in group.by_category))
    return group.label, f"{amount:>12}", f"{share(group.bytes, total):>7}", bar


def _bytes_of(gauge: Gauge) -> str:
    used, total = format_bytes(gauge.used_bytes), format_bytes(gauge.total_bytes)
    return f"{used} of {total}"


def _watts(gauge: Gauge) -> str:
    return MISSING if gauge.power_w is None else f"{gauge.power_w:.0f} W"


def _sensors(gauge: Gauge) -> str:
    degrees = MISSING if gauge.temperature_c is None else f"{gauge.temperature_c} °C"
    busy = MISSING if gauge.busy_frac is None else format_frac(gauge.busy_frac, 0)
    return f"{_watts(gauge)} {degrees} {busy} {format_joules(gauge.energy_j)}"


def _cut(text: str, terminal: Terminal) -> str:
    return text if terminal.width_cells is None else terminal.shortened(text, terminal.width_cells)
