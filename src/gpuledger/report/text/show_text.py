"""``show`` in a terminal: one device with its tables, or several side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.groups import module_label
from gpuledger.analyze.memory.tree import OUTSIDE_PATH
from gpuledger.analyze.step.line_accounts import lacks_lines, why_no_lines
from gpuledger.analyze.step.side_by_side import OF_CODE
from gpuledger.errors import UsageError
from gpuledger.report.base.kernel_names import short_kernel_names
from gpuledger.report.text.first_screen import first_screen, short_screen
from gpuledger.report.text.fusion_table import SHARED, fusion_table
from gpuledger.report.text.ranks_text import rank_set_lines
from gpuledger.report.text.run_summary import next_lines, note_lines
from gpuledger.report.text.side_by_side_table import OF_A_STEP, Units, side_by_side_table, units_of_samples
from gpuledger.report.text.tables import group_table, rank_table, tensor_table
from gpuledger.units import device_label

if TYPE_CHECKING:
    from gpuledger.analyze.view.device_view import DeviceView
    from gpuledger.analyze.view.view import RunView
    from gpuledger.report.base.terminal import Terminal, TextTable

ROWS, ROWS_OF_TWO, MORE_ROWS = 20, 10, 50
PIPED_CELLS = 80
"""Width of kernel tables in a pipe or a file, because kernel names can be very long."""


@dataclass(frozen=True)
class TableOptions:
    """How tables are printed: at most ``rows`` rows; with ``per_sample``, time and energy of one sample."""

    rows: int | None = None
    per_sample: bool = False


def show_lines(view: RunView, tables: TableOptions, terminal: Terminal) -> list[str]:
    """Return the merged view of several ranks, the first screen, and the requested tables or a row for each device.

    With a single table, or at another instant than the peak, the screen is shorter and there is no merged view.

    Raises:
        UsageError: values per sample were requested, and the number of samples of a step is unknown.
    """
    if not view.devices and view.rank_set is not None:
        return rank_set_lines(view.rank_set, terminal)
    options = view.highest.options
    is_overview = options.group_by is None and options.at == "peak" and options.step is None
    merged = view.rank_set if is_overview else None
    lines = [] if merged is None else [*rank_set_lines(merged, terminal), ""]
    lines += (first_screen if is_overview else short_screen)(view, terminal)
    if len(view.devices) > 1:
        lines += ["", *rank_table(view.devices).lines(terminal)]
        if options.group_by is None:
            return lines
    return [*lines, *_table_lines(view.highest, tables, terminal)]


def show_unknown_lines(view: RunView, tables: TableOptions, terminal: Terminal) -> list[str]:
    """Return the memory without a name on each device."""
    from gpuledger.report.text.unknown_text import unknown_lines

    lines: list[str] = []
    for device in view.devices:
        rank = device.rank.number_of_several
        unknown = unknown_lines(device.unknowns, tables.rows or ROWS, terminal, device.classes, rank)
        lines += [*([""] if lines else []), *unknown]
    return lines


def closing_lines(view: RunView, path: str, terminal: Terminal, rows: int | None = None) -> list[str]:
    """Return the notes, once each, and the commands to try next on the run at ``path``. ``rows`` as for tables."""
    if not view.devices:
        return []
    highest = view.highest
    notes = [
        *view.notes,
        *_sort_notes(highest),
        *_energy_notes(highest),
        *_fusion_notes(highest),
        *_kernel_notes(highest),
        *_line_notes(highest),
    ]
    if len(view.devices) > 1:
        one = f"--rank {highest.rank.number} --device {device_label(highest.device_idx)}"
        commands = [f"gpuledger show {path} {one}", f"gpuledger balance {path} {one}"]
    else:
        commands = _next_commands(highest, path, rows or ROWS)
    return ["", *note_lines(notes, terminal), *next_lines(commands, terminal)]


def _next_commands(view: DeviceView, path: str, rows: int) -> list[str]:
    """Return two commands. If a table has more than its first ``rows`` rows, the first one shows more of them."""
    asked, places_by = view.options, view.places_by
    others = [f"gpuledger report {path} --open", f"gpuledger balance {path}"]
    if asked.group_by is not None and _row_count(view) > rows:
        flags = {"--at": asked.at if asked.at != "peak" else None, "--step": asked.step, "--depth": asked.depth}
        given = "".join(
            f" {name} {value}" for name, value in (flags | {"--sort": asked.sort}).items() if value is not None
        )
        fold = " --fold" if asked.fold else ""
        more = max(MORE_ROWS, 4 * rows)
        return [
            f"gpuledger show {path} --by {asked.group_by}{given}{fold} -n {more}",
            others[asked.group_by == places_by],
        ]
    if asked.group_by == places_by:
        return [f"gpuledger show {path} --by tensor", others[1]]
    return [f"gpuledger show {path} --by {places_by} -n {MORE_ROWS}", others[0]]


def _row_count(view: DeviceView) -> int:
    """Return how many rows the requested table has in total."""
    if view.options.group_by == "tensor":
        return len(view.breakdown.accounts)
    return len(view.fusions if view.options.group_by == "fusion" else view.lines)


_WITHOUT_ENERGY = ("category", "tensor", "fusion")
"""Groupings without energy in their table."""


def _sort_notes(view: DeviceView) -> list[str]:
    """Return that the run has no values of the quantity that ``--sort`` names."""
    sort = view.options.sort
    if sort in (None, "bytes") or view.options.group_by is None:
        return []
    what, accounts = ("energy", view.energy) if sort == "energy" else ("time", view.times)
    if accounts is not None and accounts.accounts:
        return []
    return [f"--sort {sort}: the run has no {what} by {view.options.group_by}, so the rows are sorted by memory."]


def _energy_notes(view: DeviceView) -> list[str]:
    """Return what limits the energy of a step, and how it was attributed to the rows of a table, if it was."""
    if view.energy is None:
        return []
    limits = [note for note in view.energy.notes if note not in view.rank.manifest.notes]
    if len(view.energy.accounts) < 2 or view.options.group_by in _WITHOUT_ENERGY:
        return limits
    return [*limits, f"Energy of a row is estimated from the measured energy of a step: {view.energy.method}."]


def _fusion_notes(view: DeviceView) -> list[str]:
    """Return how kernels of several modules are divided; empty if none is shown."""
    is_shown = view.options.group_by == "fusion" and any(one.is_shared for one in view.fusions)
    return [SHARED] if is_shown else []


def _kernel_notes(view: DeviceView) -> list[str]:
    """Return what the rows of a table of kernels are on a CPU; empty on a GPU."""
    is_of_cpu = view.options.group_by == "kernel" and view.device_idx < 0
    return ["A CPU runs no kernels: the rows are operators."] if is_of_cpu else []


def _line_notes(view: DeviceView) -> list[str]:
    """Return why a table by line or function has no times; empty if it has some, or if nothing was timed."""
    group_by = view.options.group_by or view.places_by
    return [why_no_lines(view.rank)] if group_by in OF_CODE and lacks_lines(view.rank, view.device_idx) else []


def _table_lines(view: DeviceView, tables: TableOptions, terminal: Terminal) -> list[str]:
    units = _units_of_a_sample(view) if tables.per_sample else OF_A_STEP
    group_by = view.options.group_by
    if group_by in ("kernel", "operator", "fusion") and terminal.width_cells is None:
        terminal = replace(terminal, width_cells=PIPED_CELLS)
    if group_by == "tensor":
        return ["", *tensor_table(view.breakdown, tables.rows or ROWS, view.classes).lines(terminal)]
    if group_by == "fusion":
        return ["", *fusion_table(view.fusions, tables.rows or ROWS, OUTSIDE_PATH).lines(terminal)]
    lines: list[str] = []
    for one in (group_by,) if group_by else ("category", view.places_by):
        rows = tables.rows or (ROWS if group_by else ROWS_OF_TWO)
        lines += ["", *_table(view, one, rows, units).lines(terminal)]
    return lines


def _table(view: DeviceView, group_by: str, rows: int, units: Units) -> TextTable:
    """Return a table of bytes with bars if nothing else was measured, otherwise a table of all values."""
    lines = view.lines or (view.line_amounts if group_by == "line" else view.lines_by(group_by))
    names = _names([line.label for line in lines], group_by, view)
    bytes_alone = all(line.time_ns is None and line.energy_j is None for line in lines)
    if bytes_alone and not view.options.fold:
        return group_table(
            view.breakdown_by_line if group_by == "line" else view.breakdown, group_by, rows, view.classes
        )
    return side_by_side_table(lines, group_by, rows, units, names)


def _names(labels: list[str], group_by: str, view: DeviceView) -> dict[str, str]:
    """Return label -> text for rows that are not shown with their label."""
    if group_by == "module":
        return {label: module_label(label, view.classes) for label in labels if label in view.classes}
    return short_kernel_names(labels) if group_by in ("kernel", "operator") else {}


def _units_of_a_sample(view: DeviceView) -> Units:
    """Return the units for values per sample.

    Raises:
        UsageError: the number of samples is unknown, or steps of several kinds were measured.
    """
    rates = view.rates
    if rates is None or not rates.batch:
        raise UsageError(
            "--per-sample: the batch size is unknown, no module was called with a tensor",
            hint="Leave --per-sample out to show time and energy per step",
        )
    if len(rates.kinds) > 1:
        raise UsageError(
            "--per-sample: prefill and decode steps have different numbers of tokens",
            hint="Leave --per-sample out to show the tokens of both",
        )
    if rates.step_samples is None and not rates.kinds:
        raise UsageError(
            "--per-sample: the number of samples of a step is unknown, because steps have several batches, or batches "
            "of different sizes",
            hint="Leave --per-sample out to show time and energy per step",
        )
    step_ns = view.times.work_ns if view.times else 0.0
    return units_of_samples(
        rates.step_samples or rates.batch, step_ns, view.energy.step_energy_j if view.energy else 0.0
    )
