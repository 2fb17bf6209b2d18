"""The first screen of ``run`` and ``show``: peak, largest parts, savings, step time, energy, overhead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger.analyze.memory.groups import combine_layers, group_accounts
from gpuledger.analyze.memory.tree import NOT_LINES, OUTSIDE_PATH, ROUNDING_PATH
from gpuledger.model.accounts import ROUNDING
from gpuledger.report.base.phrases import (
    HOST_PARTS,
    MISSING_OR_FAILED,
    device_text,
    entry,
    failure_text,
    instant_title,
    overhead_parts,
    percent,
    place_text,
    rate,
)
from gpuledger.report.text.compile_text import compilation_texts
from gpuledger.report.text.growth_text import growth_text
from gpuledger.report.text.host_text import host_memory_text
from gpuledger.report.text.oom_text import CELLS, failure_lines
from gpuledger.report.text.tables import imbalance_line
from gpuledger.units import counted, format_bytes, format_joules, format_ns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuledger.analyze.memory.breakdown import Breakdown
    from gpuledger.analyze.overview.finding import Finding
    from gpuledger.analyze.step.energy import EnergyBreakdown
    from gpuledger.analyze.step.rates import Rates
    from gpuledger.analyze.step.step_parts import StepParts
    from gpuledger.analyze.step.times import TimeBreakdown
    from gpuledger.analyze.view.device_view import DeviceView
    from gpuledger.analyze.view.view import RunView
    from gpuledger.report.base.terminal import Terminal

OVERLAP = 1.01
"""Kernels overlap if the sum of their times is more than busy time by this factor."""
LARGEST, SAVINGS = 3, 2


def first_screen(view: RunView, terminal: Terminal) -> list[str]:
    """Return the first screen of a run. Of several devices, it is about the one with the highest peak."""
    device = view.highest
    lines = [] if view.rank_set else entry(terminal, MISSING_OR_FAILED, *view.problems, cells=CELLS)
    lines += _memory(view, terminal)
    lines += entry(terminal, "Program ended", *_failed(view), cells=CELLS)
    lines += failure_lines(view, terminal)
    lines += growth_lines(view, terminal)
    lines += _largest("Largest categories", _sizes(device.breakdown, "category"), device, terminal)
    modules = _sizes(device.breakdown, "module")
    if modules.keys() - {OUTSIDE_PATH}:
        layers = combine_layers(modules, device.classes)
        lines += _largest("Largest modules", layers, device, terminal)
        if OUTSIDE_PATH in _first(layers):
            lines += _largest("Outside modules", _named_outside(device), device, terminal)
    elif sizes := {one.label: one.bytes for one in device.source_lines if one.label not in NOT_LINES}:
        lines += _largest("Largest lines", sizes, device, terminal)
    if host := host_memory_text(device.rank.manifest):
        lines += entry(terminal, "Host memory", host, cells=CELLS)
    lines += entry(terminal, "Main loop", *_loop(device), cells=CELLS)
    lines += entry(terminal, "Operators", *_timed_program(device), cells=CELLS)
    lines += entry(terminal, "Fits", *_fits(device), cells=CELLS)
    lines += entry(terminal, "To lower the peak", *(_saving(one, device) for one in _replayed(device)), cells=CELLS)
    lines += entry(terminal, "Step time", *_step_time(device), cells=CELLS)
    lines += entry(terminal, "Compile time", *compilation_texts(device.rank.manifest.compilation, LARGEST), cells=CELLS)
    lines += _energy(device, terminal)
    if device.overhead.paused_ns is not None:
        lines += entry(terminal, "Overhead", *_joined(overhead_parts(device.overhead)), cells=CELLS)
    return lines


def _failed(view: RunView) -> list[str]:
    """Return how the program failed; empty if it did not. An out-of-memory error has lines of its own."""
    text = failure_text(view.run.manifest, view.highest.rank.manifest, is_only=len(view.run.ranks) == 1)
    return [text] if text and not view.out_of_memory else []


def _timed_program(device: DeviceView) -> list[str]:
    """Return the time of the operators of a program without steps; empty if the program has some."""
    timed, times = device.rank.manifest.timed_program, device.times
    if timed is None or times is None:
        return []
    which = "" if timed.is_whole or timed.before else "the first "
    after = f", after its first {timed.before:,}" if timed.before else ""
    return [f"{format_ns(times.work_ns)} for {which}{counted(timed.operators, 'operator')} of the program{after}"]


def short_screen(view: RunView, terminal: Terminal) -> list[str]:
    """Return the screen above a single table: memory, step time and energy."""
    lines = [*_memory(view, terminal), *entry(terminal, "Step time", *_step_time(view.highest)[:1], cells=CELLS)]
    return lines + _energy(view.highest, terminal)


def growth_lines(view: RunView, terminal: Terminal) -> list[str]:
    """Return a line for each device with memory that grew until the last step."""
    return entry(terminal, "Memory grows", *map(growth_text, view.growth), cells=CELLS)


def memory_text(device: DeviceView) -> str:
    """Return how much memory is allocated, when and where."""
    breakdown, summary = device.breakdown, device.summary
    size, capacity = format_bytes(breakdown.allocated_bytes), summary.capacity_bytes
    of_capacity = f" of {format_bytes(capacity)} ({percent(breakdown.allocated_bytes, capacity)})" if capacity else ""
    name = device_text(summary.device_idx, summary.device_name, device.rank.number_of_several)
    text = f"{size} of {name}" if summary.device_idx < 0 else f"{size}{of_capacity} on {name}"
    place = place_text(breakdown.instant, device.classes)
    is_known = summary.device_idx >= 0 and summary.recorded_peak_reserved_bytes is not None
    reserved = f"; {format_bytes(breakdown.reserved_bytes)} reserved" if is_known else ""
    return ", ".join(part for part in (text, place) if part) + reserved


def _memory(view: RunView, terminal: Terminal) -> list[str]:
    device = view.highest
    title = instant_title(device.breakdown.instant, device.options.step)
    peaks = device.summary.outside_peaks.items()
    sizes = [f"{format_bytes(size)} {word} ({format_bytes(more)} more)" for word, (size, more) in peaks]
    outside = [f"outside the recorded steps: up to {', '.join(sizes)}"] if sizes else []
    lines = entry(terminal, title, memory_text(device), *outside, cells=CELLS)
    if view.imbalance is not None:
        lines += entry(terminal, "Ranks", imbalance_line(view.imbalance), cells=CELLS)
    return lines


def _sizes(breakdown: Breakdown, word: str) -> dict[str, int]:
    """Return label -> bytes, largest first, without rounding."""
    groups = group_accounts(breakdown.accounts, word)
    return {group.label: group.bytes for group in groups if group.label not in (ROUNDING, ROUNDING_PATH)}


def _named_outside(device: DeviceView) -> dict[str, int]:
    """Return name, or source line of what has none -> bytes outside modules. Less than 1 % of all is left out."""
    sizes: dict[str, int] = {}
    for account in device.outside_modules:
        label = account.name or account.line
        if label and label not in NOT_LINES:
            sizes[label] = sizes.get(label, 0) + account.bytes
    return {label: size for label, size in sizes.items() if 100 * size >= device.breakdown.allocated_bytes}


def _first(sizes: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(sizes.items(), key=lambda item: -item[1])[:LARGEST])


def _largest(label: str, sizes: Mapping[str, int], device: DeviceView, terminal: Terminal) -> list[str]:
    """Return the largest parts, each with its share of the allocated bytes."""
    total, largest = device.breakdown.allocated_bytes, _first(sizes).items()
    parts = ", ".join(f"{name} {percent(size, total)}" for name, size in largest)
    return entry(terminal, label, *([parts] if parts else []), cells=CELLS)


def _loop(device: DeviceView) -> list[str]:
    """Return the main loop of a program without steps. Its time is that of the host, and known on a CPU only."""
    loop = device.loop
    if loop is None:
        return []
    each = f"each allocates {format_bytes(loop.allocated_bytes)} in total"
    time = f" and takes {format_ns(loop.iteration_ns)} while recorded" if device.device_idx < 0 else ""
    peak = f"highest: {format_bytes(loop.peak_bytes)} in iteration {loop.peak_iteration:,}"
    return [f"{loop.line}, {loop.iterations:,} iterations", f"{each}{time}; {peak}"]


def _replayed(device: DeviceView) -> list[Finding]:
    """Return what grows, and then the findings with the largest savings that were replayed from this run."""
    replayed = [finding for finding in device.findings if finding.is_replayed or finding.grows]
    return sorted(replayed, key=lambda finding: not finding.grows)[:SAVINGS]


def _saving(finding: Finding, device: DeviceView) -> str:
    """Return what to do, what it saves, what the peak would then be, and whether that fits."""
    if finding.grows:  # what it saves depends on how long the program runs
        return f"{finding.action}: {finding.title[0].lower()}{finding.title[1:]}"
    size = f"{format_bytes(finding.saving_bytes)} ({percent(finding.saving_bytes, _peak_of(device))})"
    text = f"{finding.action}: saves {'at most' if finding.is_upper_bound else 'about'} {size}"
    if finding.peak_after_bytes is None:
        return text
    fits, at_least = device.fits(finding.peak_after_bytes), "at least " if finding.is_upper_bound else ""
    verdict = "" if fits is None else ", does not fit" if not fits else ", may fit" if at_least else ", fits"
    return f"{text}, peak then {at_least}{format_bytes(finding.peak_after_bytes)}{verdict}"


def _peak_of(device: DeviceView) -> int:
    return device.summary.recorded_peak_allocated_bytes


def _fits(device: DeviceView) -> list[str]:
    """Return whether the run fits in the requested size, and what it needs."""
    fit_bytes = device.options.fit_bytes
    if fit_bytes is None:
        return []
    beyond = device.beyond_peak_bytes
    needed = format_bytes(_peak_of(device) + beyond)
    parts = f", {format_bytes(beyond)} of it unused segments, context and libraries" if beyond else ""
    return [f"{'yes' if device.fits(_peak_of(device)) else 'no'}, {needed} of {format_bytes(fit_bytes)} needed{parts}"]


def _step_time(device: DeviceView) -> list[str]:
    """Return step time, samples per second, and what limits the step."""
    steps = device.summary.step_time
    if steps.median_ns is None:
        return [f"not measured: {steps.source}"]
    source = steps.source.removeprefix("host clock, ")
    spread = " median" if steps.count > 1 and source != steps.source and not source.startswith("mean") else ""
    spread += "" if steps.p95_ns is None else f", {format_ns(steps.p95_ns)} p95"
    texts = [f"{format_ns(steps.median_ns)}{spread} ({source})"]
    if device.times is None:
        return texts
    rates = [] if device.rates is None else _rates(device.rates, device.rank.number_of_several)
    bounds = _operators(device.parts) if device.times.on_host else _busy(device.times)
    return [*texts, *_joined(bounds), *rates]


def _rates(rates: Rates, rank: int | None) -> list[str]:
    """Return samples and tokens per second of a process, with its rank if it is one of several."""
    tokens = [
        f"{kind.name} {rate(kind.row_tokens_per_s)} tokens/s{'' if kind.rows == 1 else ' in each row'}"
        for kind in rates.kinds
    ]
    samples = [] if rates.samples_per_s is None else [f"{rate(rates.samples_per_s)} samples/s"]
    found = [*samples, *tokens]
    rows = "1 row" if rates.batch == 1 else f"{rates.batch} rows, beams included"
    several = f"{rates.step_samples} samples in a step, " if rates.step_samples not in (None, rates.batch) else ""
    batch = rows if rates.kinds else f"{several}batch {rates.batch}"
    where = "" if rank is None else f" on rank {rank}"
    return [f"{', '.join(found)}{where} ({batch}: {rates.source.partition(', ')[0]})"] if found else []


def _busy(times: TimeBreakdown) -> list[str]:
    """Return how busy the GPU is, and what an idle GPU waits for."""
    step_ns = times.step_ns
    names = {"copy": "copies", "collective": "collectives"}
    sizes = {text: round(times.by_kind_ns.get(kind, 0)) for kind, text in names.items()}
    shown = [percent(times.busy_ns, step_ns)] if step_ns else []
    shown += [f"of a profiled step of {format_ns(round(step_ns))}"] if step_ns and times.of_profiled_step else []
    if times.work_ns > OVERLAP * times.busy_ns:
        shown.append(f"kernels sum to {format_ns(round(times.work_ns))}, some at the same time")
    shown += [f"{text} {format_ns(time_ns)}" for text, time_ns in sizes.items() if time_ns]
    parts = [f"GPU busy {format_ns(round(times.busy_ns))}" + (f" ({'; '.join(shown)})" if shown else "")]
    if times.idle_ns is not None:
        idle = f"idle {format_ns(round(times.idle_ns))} ({percent(times.idle_ns, step_ns)})"
        if times.idle_waiting_for_cpu_ns is not None and times.idle_ns:
            idle += f", of which {format_ns(round(times.idle_waiting_for_cpu_ns))} waiting for the CPU"
        parts.append(idle)
    return parts


def _operators(parts: StepParts | None) -> list[str]:
    """Return the phases of a step on the CPU, longest first."""
    if parts is None:
        return []
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    least_ns = 0.001 * parts.step_ns
    return [
        f"{HOST_PARTS.get(name, name)} {percent(time_ns, parts.step_ns)}"
        for name, time_ns in ordered
        if time_ns >= least_ns
    ]


def _energy(device: DeviceView, terminal: Terminal) -> list[str]:
    if device.energy is None:
        return []
    joules = _joules(device.energy, device.rates, device.rank.number_of_several)
    return entry(terminal, "Energy", joules, cells=CELLS)


def _joules(energy: EnergyBreakdown, rates: Rates | None, rank: int | None) -> str:
    long_s = energy.unusual_step_s
    per_step = "per step" if long_s is None else f"per step of {format_ns(1e9 * long_s)}"
    per_step += "" if rank is None else f" on rank {rank}"
    parts = [f"{format_joules(energy.step_energy_j, energy.step_uncertainty_j)} {per_step}"]
    if rates is not None and rates.sample_energy_j is not None:
        parts.append(f"{format_joules(rates.sample_energy_j)} per sample")
    kinds = () if rates is None else rates.kinds
    for kind in kinds:
        if kind.token_energy_j is not None:
            of_rows = "" if kind.rows == 1 else " of each row"
            parts.append(f"{format_joules(kind.token_energy_j)} per {kind.name} token{of_rows}")
    if energy.base_w is not None:
        parts.append(f"base power {energy.base_w:.0f} W")
    return ", ".join(parts)


def _joined(parts: list[str]) -> list[str]:
    return [", ".join(parts)] if parts else []
