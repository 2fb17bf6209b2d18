"""An estimate in words and as a table."""

from __future__ import annotations

from rich.cells import cell_len

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.groups import combine_layers, group_accounts
from gpuledger.analyze.memory.instant import find_peak, module_classes
from gpuledger.report.base.phrases import column_unit
from gpuledger.report.base.terminal import BOLD, DIM, Cell, Terminal, TextColumn, TextTable
from gpuledger.report.text.tables import Row, Scale
from gpuledger.simulate.catalogue import GpuModel
from gpuledger.simulate.estimate.fit import FITS, Fit
from gpuledger.simulate.estimate.run import Estimate, some_of
from gpuledger.simulate.estimate.search import Search
from gpuledger.units import counted, decimals_for, format_bytes

_GIB = 1 << 30
_MOST_DECIMALS = 3


def verdict_line(found: Estimate) -> str:
    """Return the answer in one line: ``fits on h200 (71.2 of 139.8 GiB at the peak, ±1.4)``."""
    card, peaks = found.card, found.peaks
    full_after, when = found.fit.full_after_steps, "at the peak"
    if full_after is not None:
        when = f"after {counted(found.steps, 'step')}"
    peak = f"{peaks.process_bytes / _GIB:.{_decimals(found)}f}"
    sizes = f"{peak} of {card.usable_bytes / _GIB:.1f} GiB {when}, {interval(found)}"
    if full_after is not None:
        sizes += f", full after about {counted(full_after, 'step')}"
    if found.memory_errors:
        sizes += f", {counted(found.memory_errors, 'out-of-memory error')} handled"
    return f"{found.fit.verdict} on {card.key} ({sizes})"


def interval(found: Estimate) -> str:
    """Return the interval of the process's peak in GiB: ``-0.5 +1.4``, or ``±0.1`` if both ends are as far."""
    less, more = (f"{side / _GIB:.{_decimals(found)}f}" for side in _sides(found))
    return f"±{more}" if less == more else f"-{less} +{more}"


def _sides(found: Estimate) -> tuple[float, float]:
    """Return how far the lower and the upper end of the interval are from the process's peak, in bytes."""
    peaks = found.peaks
    return peaks.process_bytes - peaks.lower_bytes, peaks.upper_bytes - peaks.process_bytes


def _decimals(found: Estimate) -> int:
    """Return how many decimals show both sides of the interval in GiB: one, or two or three for small programs."""
    return min(max(decimals_for(side / _GIB, 1) for side in _sides(found)), _MOST_DECIMALS)


def steps_text(found: Estimate) -> str:
    """Return how many steps were simulated, and when the peak was: ``simulated steps 3, peak in step 2``."""
    steps, peak = found.steps, found.peak_step
    said = f"simulated steps {steps}"
    if not steps:
        return said
    if not peak:
        return f"{said}, peak before step 1"
    return f"{said}, peak after step {steps}" if peak > steps else f"{said}, peak in step {peak}"


def estimate_lines(found: Estimate, terminal: Terminal, rows: int) -> list[str]:
    """Return the answer: the verdict, what was alive at the peak, and a GPU of each memory size."""
    peaks = found.peaks
    lines = [
        terminal.styled(terminal.text(verdict_line(found)), BOLD),
        *([terminal.text(_uncompiled_line(found))] if found.uncompiled else []),
        *in_lines(
            terminal,
            f"allocated {format_bytes(peaks.allocated_bytes)}",
            f"reserved {format_bytes(peaks.reserved_bytes)}",
            f"context and libraries {format_bytes(found.card.outside_bytes)}",
            steps_text(found),
        ),
        "",
    ]
    for word in ("category", "module"):
        lines += [*breakdown_table(found, word, rows).lines(terminal), ""]
    others = fits_by_size(found)
    rest = f"One GPU of each memory size, with the largest peak. For all {len(found.others)}: --gpu all"
    return [*lines, *_cards(others).lines(terminal), "", terminal.styled(rest, DIM)]


def in_lines(terminal: Terminal, *parts: str) -> list[str]:
    """Return the parts beside each other, in as many lines as the terminal needs."""
    lines = [""]
    for part in map(terminal.text, parts):
        longer = f"{lines[-1]}   {part}" if lines[-1] else part
        if terminal.width_cells is None or cell_len(longer) <= terminal.width_cells:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


def fits_by_size(found: Estimate) -> tuple[Fit, ...]:
    """Return the result for one GPU of each memory size, in the order of all: the one with the largest upper bound.

    The GPU of the estimate stands for its size.
    """
    chosen: dict[int, Fit] = {}
    for fit in found.others:
        known = chosen.get(fit.card.total_bytes)
        is_asked = fit.card.key == found.card.key
        if known is None or is_asked or (known.card.key != found.card.key and fit.upper_bytes > known.upper_bytes):
            chosen[fit.card.total_bytes] = fit
    return tuple(chosen.values())


def _uncompiled_line(found: Estimate) -> str:
    sizes = f"{format_bytes(found.lower_bytes)} to {format_bytes(found.upper_bytes)}"
    return f"compiled code is approximated ({some_of(found.uncompiled)}); the program may need {sizes}"


def breakdown_table(found: Estimate, word: str, rows: int) -> TextTable:
    """Return what was alive at the peak by one word, equal layers in one row. The rows sum to the allocated bytes."""
    rank = found.run.rank(found.rank)
    breakdown = break_down(rank, find_peak(rank), by=(word,))
    sizes = {group.label: group.bytes for group in group_accounts(breakdown.accounts, word)}
    if word == "module":
        sizes = combine_layers(sizes, module_classes(rank))
    largest = sorted(sizes.items(), key=lambda item: -item[1])
    scale = Scale(column_unit(breakdown.allocated_bytes), breakdown.allocated_bytes)
    entries: list[Row] = [(label, *scale.cells(size)) for label, size in largest[:rows]]
    if rest := sum(size for _, size in largest[rows:]):
        entries.append((Cell(f"… {len(largest) - rows:,} more", DIM), *scale.cells(rest, DIM)))
    entries.append((Cell("total", BOLD), *scale.cells(breakdown.allocated_bytes, BOLD)))
    titles = (TextColumn(scale.unit.name, right=True), TextColumn("share", right=True))
    return TextTable((TextColumn(f"by {word}", shrinks=True), *titles), tuple(entries))


def _cards(fits: tuple[Fit, ...]) -> TextTable:
    names = ("memory", "peak", "upper bound", "left")
    columns = (TextColumn("GPU"), *(TextColumn(name, right=True) for name in names), TextColumn("verdict"))
    rows = []
    for fit in fits:
        sizes = (fit.card.total_bytes, fit.process_bytes, fit.upper_bytes, fit.free_bytes)
        verdict = f"{fit.verdict}, approximate" if fit.approximate else fit.verdict
        rows.append((fit.card.key, *map(format_bytes, sizes), verdict))
    return TextTable(columns, tuple(rows))


def every_gpu_line(found: Estimate) -> str:
    """Return the answer for all GPUs in one line: ``fits on 14 of 25 GPUs; the smallest is rtx-4080 (16.0 GiB)``."""
    fitting = [fit.card for fit in found.others if fit.verdict == FITS]
    line = f"fits on {len(fitting)} of {len(found.others)} GPUs"
    if not fitting:
        return line
    smallest = min(fitting, key=lambda card: card.total_bytes)
    return f"{line}; the smallest is {smallest.key} ({format_bytes(smallest.total_bytes)})"


def every_gpu_lines(found: Estimate, terminal: Terminal) -> list[str]:
    """Return the answer for all GPUs, and a table of them."""
    first = terminal.styled(terminal.text(every_gpu_line(found)), BOLD)
    return [first, terminal.text(steps_text(found)), "", *_cards(found.others).lines(terminal)]


def search_lines(found: Search, card: GpuModel, name: str, terminal: Terminal) -> list[str]:
    """Return the largest value that fits, and what was tried."""
    flag = f"--{name.lstrip('-')}"
    first = f"largest {flag} on {card.key}: {found.largest}" if found.largest else f"no {flag} fits {card.key}"
    rows = tuple((str(trial.value), format_bytes(trial.process_bytes), trial.verdict) for trial in found.trials)
    table = TextTable((TextColumn(flag, right=True), TextColumn("peak", right=True), TextColumn("verdict")), rows)
    if any(trial.is_uncompiled for trial in found.trials):
        first += " (compiled code is approximated)"
    if any(trial.grows for trial in found.trials):
        first += " (for the simulated steps; memory grows with more of them)"
    return [terminal.styled(terminal.text(first), BOLD), "", *table.lines(terminal)]
