"""``show`` in a terminal: one device with its tables, or several side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.errors import UsageError
from gpuledger.report.base.phrases import cost_lines, device_label, head_lines
from gpuledger.report.text.ledger_table import OF_A_STEP, Units, ledger_table, units_of_samples
from gpuledger.report.text.tables import group_table, imbalance_line, rank_table, tensor_table
from gpuledger.report.text.text import next_lines
from gpuledger.report.text.unknown_text import unknown_lines

if TYPE_CHECKING:
    from gpuledger.analyze.view.view import DeviceView, RunView
    from gpuledger.report.base.terminal import Table, Terminal

ROWS, ROWS_OF_TWO = 20, 10


@dataclass(frozen=True)
class TableOptions:
    """How tables are printed: at most ``rows`` rows, times and energy of one sample where ``per_sample``."""

    rows: int | None = None
    per_sample: bool = False


def show_lines(view: RunView, tables: TableOptions, terminal: Terminal) -> list[str]:
    """Return the only device; of several a row each and, where one table was asked for, the one with the highest peak.

    Raises:
        UsageError: figures of one sample were asked for, and it is not known how many samples a step has.
    """
    if len(view.devices) == 1:
        return _device_lines(view.devices[0], tables, terminal)
    lines = rank_table(view.devices).lines(terminal)
    if view.imbalance is not None:
        lines += ["", *terminal.paragraph(imbalance_line(view.imbalance))]
    highest = view.highest
    if highest.options.group_by is None:
        return lines
    where = f"rank {highest.rank.number} · {device_label(highest.device_idx)}, whose peak is highest"
    return [*lines, "", where, *_device_lines(highest, tables, terminal)]


def show_unknown_lines(view: RunView, tables: TableOptions, terminal: Terminal) -> list[str]:
    """Return what has no name yet on each device."""
    lines: list[str] = []
    for device in view.devices:
        lines += [*([""] if lines else []), *unknown_lines(device.unknowns, tables.rows or ROWS, terminal)]
    return lines


def closing_lines(view: RunView, path: str, terminal: Terminal) -> list[str]:
    """Return the notes, once each, and the commands to try next on the run at ``path``."""
    lines = [line for note in view.notes for line in terminal.paragraph(note, "note   ", 7)]
    highest = view.highest
    if len(view.devices) > 1:
        one = f"--rank {highest.rank.number} --device {highest.device_idx}"
        commands = [f"gpuledger show {path} {one}", f"gpuledger balance {path} {one}"]
    elif highest.options.group_by == "module":
        commands = [f"gpuledger show {path} --by tensor", f"gpuledger balance {path}"]
    else:
        commands = [f"gpuledger show {path} --by module -n 50", f"gpuledger report {path} --open"]
    return ["", *lines, *next_lines(commands, terminal)]


def _device_lines(view: DeviceView, tables: TableOptions, terminal: Terminal) -> list[str]:
    lines = [*head_lines(view, terminal), *cost_lines(view.cost, terminal)]
    units = _units_of_a_sample(view) if tables.per_sample else OF_A_STEP
    group_by = view.options.group_by
    if group_by == "tensor":
        return [*lines, "", *tensor_table(view.breakdown, tables.rows or ROWS).lines(terminal)]
    for word in (group_by,) if group_by else ("category", "module"):
        rows = tables.rows or (ROWS if group_by else ROWS_OF_TWO)
        lines += ["", *_table(view, word, rows, units).lines(terminal)]
    return lines


def _table(view: DeviceView, word: str, rows: int, units: Units) -> Table:
    """Return the table of bytes with its bars where nothing else is known, else of all that is known."""
    lines = view.lines or view.lines_by(word)
    bytes_alone = all(line.time_ns is None and line.energy_j is None for line in lines)
    if bytes_alone and not view.options.fold:
        return group_table(view.breakdown, word, rows)
    return ledger_table(lines, word, rows, units)


def _units_of_a_sample(view: DeviceView) -> Units:
    """Return the units in which a step is shown for one of its samples.

    Raises:
        UsageError: their number is not known, or steps of several kinds are among those that were measured.
    """
    rates = view.rates
    if rates is None or not rates.batch:
        raise UsageError("--per-sample: no module was called with a tensor", hint="times and joules are of a step")
    if len(rates.kinds) > 1:
        raise UsageError("--per-sample: prefill and decode differ in their tokens", hint="`show` tells tokens of both")
    step_ns = view.times.work_ns if view.times else 0.0
    return units_of_samples(rates.batch, step_ns, view.energy.step_energy_j if view.energy else 0.0)
