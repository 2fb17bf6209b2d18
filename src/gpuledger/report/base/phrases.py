"""Figures and places in the words every text view uses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len

from gpuledger.report.base.terminal import BOLD, Terminal
from gpuledger.units import format_bytes, format_frac, format_joules, format_ns, share_frac

if TYPE_CHECKING:
    from gpuledger.analyze.memory.instant import Instant
    from gpuledger.analyze.overview.summary import Summary
    from gpuledger.analyze.step.energy import EnergyBreakdown
    from gpuledger.analyze.step.own_cost import OwnCost
    from gpuledger.analyze.step.rates import Rates
    from gpuledger.analyze.step.times import TimeBreakdown
    from gpuledger.analyze.view.view import DeviceView

MISSING = "–"
LABEL_CELLS = 7


def percent(part: float | None, whole: float | None) -> str:
    """Return a share in running text: ``51 %``, ``3.4 %``, ``< 0.1 %``; a dash where it is unknown."""
    fraction = share_frac(part, whole)
    return format_frac(fraction, 0) if fraction is not None and abs(fraction) >= 0.0995 else share(part, whole)


def share(part: float | None, whole: float | None) -> str:
    """Return a share for a column, always with one decimal: ``51.0 %``, ``< 0.1 %``; a dash where it is unknown."""
    fraction = share_frac(part, whole)
    if fraction is None:
        return MISSING
    return "< 0.1 %" if 0 < fraction < 0.0005 else format_frac(fraction)


@dataclass(frozen=True)
class Unit:
    """One unit for a whole column, so that its figures can be compared and added as they stand."""

    name: str
    bytes: int

    def amount(self, value_bytes: int | None) -> str:
        """Return bytes in this unit, ``72,908.8``; ``< 0.1`` for a little, a dash where they are unknown."""
        if value_bytes is None:
            return MISSING
        if self.bytes == 1:
            return f"{value_bytes:,}"
        if 0 < abs(value_bytes) < self.bytes / 20:
            return "< 0.1" if value_bytes > 0 else "> -0.1"
        return f"{value_bytes / self.bytes:,.1f}"


def column_unit(largest_bytes: int) -> Unit:
    """Return MiB, or KiB or B where the largest figure would have fewer than four digits before its point."""
    if largest_bytes >= 1_000 << 20:
        return Unit("MiB", 1 << 20)
    return Unit("KiB", 1 << 10) if largest_bytes >= 1_000 << 10 else Unit("B", 1)


def device_label(device_idx: int) -> str:
    """Return ``cuda:0``, or ``cpu`` for -1."""
    return "cpu" if device_idx < 0 else f"cuda:{device_idx}"


def of_capacity(value_bytes: int, capacity_bytes: int | None) -> str:
    """Return ``71.2 GiB of 139.8 (51 %)``; the unit is said once where it is the same."""
    value = format_bytes(value_bytes)
    if not capacity_bytes:
        return value
    number, unit = format_bytes(capacity_bytes).split(" ")
    whole = number if value.endswith(f" {unit}") else f"{number} {unit}"
    return f"{value} of {whole} ({percent(value_bytes, capacity_bytes)})"


def place_of(instant: Instant) -> str:
    """Return where the program was: ``step 2 · backward · layers.31.mlp``."""
    step = f"step {instant.step}" if instant.step else ""
    return " · ".join(part for part in (step, instant.phase, instant.module) if part)


def labelled(terminal: Terminal, label: str, parts: Sequence[str]) -> list[str]:
    """Return ``parts`` after a label in bold; following lines are indented below the first part."""
    return labelled_rows(terminal, {label: parts})


def labelled_rows(terminal: Terminal, rows: Mapping[str, Sequence[str]]) -> list[str]:
    """Return rows by label, as many parts each; they stand below each other, and are broken before the same part."""
    room = None if terminal.width_cells is None else max(terminal.width_cells - LABEL_CELLS, 8)
    safe = [[terminal.text(part) for part in parts] for parts in rows.values()]
    fitted = [[part if room is None else terminal.shortened(part, room) for part in parts] for parts in safe]
    widths = [max(cell_len(part) for part in column) for column in zip(*fitted, strict=True)]
    lines = []
    for label, parts in zip(rows, fitted, strict=True):
        even = [part + " " * (cells - cell_len(part)) for part, cells in zip(parts, widths, strict=True)]
        first, *more = terminal.wrapped([f"{label:<{LABEL_CELLS - 1}} {even[0]}", *even[1:]], LABEL_CELLS)
        lines += [terminal.styled(label, BOLD) + first[len(label) :].rstrip(), *(line.rstrip() for line in more)]
    return lines


def head_lines(view: DeviceView, terminal: Terminal) -> list[str]:
    """Return the lines that what is said of one device begins with: bytes, step time, and what a step takes."""
    summary, breakdown = view.summary, view.breakdown
    instant = breakdown.instant
    parts = [
        of_capacity(breakdown.allocated_bytes, summary.capacity_bytes),
        place_of(instant),
        f"reserved {format_bytes(breakdown.reserved_bytes)}" if instant.device_idx >= 0 else "CPU tensors",
    ]
    label = instant.label if len(instant.label) < LABEL_CELLS else "at"
    if label == "at":
        parts.insert(0, instant.label)
    lines = [*labelled(terminal, label, parts), *labelled(terminal, "step", step_time(summary))]
    if view.times is not None:
        lines += labelled(terminal, "time", time_parts(view.times))
    if view.energy is not None:
        lines += labelled(terminal, "joules", energy_parts(view.energy))
    if view.rates is not None and (view.times is not None or view.energy is not None):
        lines += labelled(terminal, "rate", rate_parts(view.rates))
    return lines


def cost_lines(cost: OwnCost, terminal: Terminal) -> list[str]:
    """Return what recording took, in a line; none where it took nothing."""
    return labelled(terminal, "cost", cost_parts(cost)) if cost.recorder_bytes or cost.paused_ns else []


def time_parts(times: TimeBreakdown) -> list[str]:
    """Return where a step's time goes, in parts: ``busy 31.20 ms``, ``idle 1.10 ms``, ``Kineto, 2 steps``."""
    source = f"Kineto, {times.steps} steps" if times.steps > 1 else "Kineto, 1 step"
    if times.on_host:
        return [f"operators {format_ns(round(times.work_ns))} a step", f"host time, {source}"]
    step_ns = times.unprofiled.median_ns
    busy = f"busy {format_ns(round(times.busy_ns))} a step"
    parts = [f"{busy} ({percent(min(times.busy_ns, step_ns), step_ns)})" if step_ns else busy]
    if times.idle_ns is not None:
        parts.append(f"idle {format_ns(max(round(times.idle_ns), 0))} (derived)")
    if times.host_bound_ns is not None:
        parts.append(f"host-bound {format_ns(round(times.host_bound_ns))} of it")
    others = {kind: round(times.by_kind_ns.get(kind, 0)) for kind in ("copy", "collective")}
    return [*parts, *(f"{kind} {format_ns(time_ns)}" for kind, time_ns in others.items() if time_ns), source]


_AT_COMMAS = re.compile(r", (?![^(]*\))")
"""Where a sentence may be taken apart: at commas that are not within brackets."""


def energy_parts(energy: EnergyBreakdown) -> list[str]:
    """Return a step's joules in parts: ``4.21 J ± 10.00 mJ a step``, ``base power 118 W``, the method of the shares."""
    parts = [f"{format_joules(energy.step_energy_j)} ± {format_joules(energy.step_uncertainty_j)} a step"]
    if energy.base_w is not None:
        parts.append(f"base power {energy.base_w:.0f} W")
    return [*parts, f"{energy.steps} steps", *_AT_COMMAS.split(energy.method)]


def rate_parts(rates: Rates) -> list[str]:
    """Return samples, or prefill and decode, in parts."""
    parts = []
    if rates.samples_per_s is not None:
        parts.append(f"{rates.samples_per_s:,.1f} samples/s")
    if rates.sample_energy_j is not None:
        parts.append(f"{format_joules(rates.sample_energy_j)} a sample")
    for kind in rates.kinds:
        joules = "" if kind.token_energy_j is None else f", {format_joules(kind.token_energy_j)} a token"
        parts.append(f"{kind.name} {kind.tokens_per_s:,.1f} tokens/s{joules}")
    return [*parts, f"batch {rates.batch}: {rates.source}"]


def cost_parts(cost: OwnCost) -> list[str]:
    """Return what recording took in parts: ``this profiler: 12.1 MiB of host memory``, ``3.20 s of pauses``."""
    parts = [f"this profiler: {format_ns(cost.paused_ns)} of pauses"]
    if cost.recorder_bytes is not None:
        parts.insert(0, f"this profiler: {format_bytes(cost.recorder_bytes)} of host memory")
        parts[1] = f"{format_ns(cost.paused_ns)} of pauses"
    if cost.timed_step_frac is not None:
        named = "" if cost.named_step_frac is None else f" ({cost.named_step_frac:.2f} with its operators)"
        parts.append(f"a step in the time pass takes {cost.timed_step_frac:.2f} of a bare one{named}")
    if cost.energy_j is not None:
        parts.append(f"{format_joules(cost.energy_j)} in pauses, at most")
    return parts


def step_time(summary: Summary) -> list[str]:
    """Return the step time in parts: ``412.00 ms (p95 431.00 ms)``, ``host clock, 5 unprofiled steps``."""
    times = summary.step_time
    if times.median_ns is None:
        return [MISSING, times.source]
    return [f"{format_ns(times.median_ns)} (p95 {format_ns(times.p95_ns)})", times.source]
