"""Summary of the GPUs during one command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuledger.analyze.ranks.rank_notes import label_notes
from gpuledger.report.base.phrases import entry
from gpuledger.report.base.terminal import MISSING, Terminal
from gpuledger.report.text.oom_text import CELLS
from gpuledger.report.text.run_summary import note_lines
from gpuledger.units import counted, format_bytes, format_joules, format_seconds

if TYPE_CHECKING:
    from gpuledger.analyze.samples.watched import Watched
    from gpuledger.model.run import Run


def watched_lines(run: Run, figures: Sequence[Watched], terminal: Terminal) -> list[str]:
    """Return the values of every GPU, and the run's notes."""
    lines: list[str] = []
    for one in figures:
        mean = MISSING if one.mean_active_bytes is None else format_bytes(one.mean_active_bytes)
        area = MISSING if one.area_mib_s is None else f"{one.area_mib_s:,.1f} MiB·s"
        parts = (f"{_maybe_bytes(one.peak_bytes)}{_baseline(one)}", f"mean while active {mean}", area)
        peak = ", ".join(part for part in parts if part)
        gpu = "" if len(figures) == 1 else f" of GPU {one.device_idx}"
        lines += entry(terminal, f"Peak memory{gpu}", peak, cells=CELLS)
        duration = MISSING if one.duration_s is None else format_seconds(one.duration_s)
        lines += entry(terminal, "Duration", f"{duration}, {counted(one.samples, 'sample')}", cells=CELLS)
        lines += entry(terminal, "Energy", ", ".join(_energy(one)), cells=CELLS)
        lines += note_lines(one.notes, terminal)
    of_ranks = [(rank.number, note) for rank in run.ranks for note in rank.manifest.notes]
    notes = [*run.manifest.notes, *label_notes(of_ranks, [rank.number for rank in run.ranks])]
    return lines + note_lines(notes, terminal)


def _maybe_bytes(value: int | None) -> str:
    return MISSING if value is None else format_bytes(value)


def _baseline(one: Watched) -> str:
    return "" if one.baseline_bytes is None else f" above the {format_bytes(one.baseline_bytes)} at the start"


def _energy(one: Watched) -> list[str]:
    if one.energy_j is None:
        return [f"{MISSING} (too short, or the GPU does not report its energy)"]
    parts = [format_joules(one.energy_j, one.energy_uncertainty_j)]
    if one.mean_power_w is not None:
        parts.append(f"mean {one.mean_power_w:,.1f} W")
    if one.peak_power_w is not None:
        parts.append(f"peak {one.peak_power_w:,.1f} W")
    if one.throttled_s is not None:
        parts.append(f"throttled {format_seconds(one.throttled_s)}")
    return parts
