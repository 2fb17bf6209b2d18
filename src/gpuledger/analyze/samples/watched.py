"""Figures of a GPU in one run: peak, mean, area, time, energy, power, throttling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.samples.series import BOOK_SOURCE, SECONDS, STEPS_SOURCE, SampleLine, known_values, read_lines
from gpuledger.analyze.step.energy import step_energy
from gpuledger.analyze.step.steps import step_times
from gpuledger.model.arrow_numbers import to_numbers

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
MIB = 1 << 20
THROTTLED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Reasons in NVML's mask for a clock below the requested one: power cap, hardware, temperature (two), power brake."""
POWER_COLUMNS = ("power_average_w", "power_instant_w")


@dataclass(frozen=True)
class Watched:
    """Figures of one GPU in one run. A figure is None if unknown, for the reason in a note.

    ``peak_bytes`` and ``mean_active_bytes`` are above ``baseline_bytes``, the first sample of a whole GPU (0 for the
    allocator's bytes). The GPU is active while its bytes are above it, for ``active_s``. ``area_mib_s`` is the integral
    of the bytes above it over time. ``duration_s`` is that of the command. For a log without a command it is the active
    time, or the length of the log if the bytes never rose. ``step_time_ns`` is the median; ``step_energy_j`` is from
    the energy measurement.
    """

    name: str
    device_idx: int
    peak_bytes: int | None
    mean_active_bytes: float | None
    area_mib_s: float | None
    duration_s: float | None
    energy_j: float | None
    energy_uncertainty_j: float | None
    mean_power_w: float | None
    peak_power_w: float | None
    throttled_s: float | None
    baseline_bytes: int | None
    samples: int
    active_s: float | None = None
    exit_status: int | None = None
    notes: tuple[str, ...] = ()
    step_time_ns: int | None = None
    step_energy_j: float | None = None


def watched(run: Run) -> tuple[Watched, ...]:
    """Return the figures of every GPU of a run, by rank and device; empty without samples and allocations.

    Source: the tables ``samples`` and ``windows``; for a run without samples, the allocator's bytes.
    """
    lines, _ = read_lines([run])
    by_rank = {rank.number: rank for rank in run.ranks}
    return tuple(_figures(run, by_rank[line.rank], line) for line in lines)


def _figures(run: Run, rank: Rank, line: SampleLine) -> Watched:
    held_ns = _held_ns(line)
    baseline = 0.0 if line.source in (BOOK_SOURCE, STEPS_SOURCE) else float(line.values[0])
    above = np.maximum(line.values - baseline, 0.0)
    timed = line.clock == SECONDS and bool(held_ns.any())
    active_s = int(held_ns[above > 0].sum()) / 1e9 if timed else None
    area = float((above * held_ns).sum()) / 1e9
    power = _Power.of(rank, line.device_idx, _span_ns(run, line, above))
    duration_s, duration_note = _duration(run, active_s, int(held_ns.sum()) / 1e9 if timed else None)
    step = step_energy(rank, line.device_idx)
    notes = [*power.notes, *([duration_note] if duration_note else [])]
    return Watched(
        line.name,
        line.device_idx,
        peak_bytes=round(float(above.max())),
        mean_active_bytes=area / active_s if active_s else None,
        area_mib_s=area / MIB if timed else None,
        duration_s=duration_s,
        energy_j=power.energy_j,
        energy_uncertainty_j=power.uncertainty_j,
        mean_power_w=power.mean_w,
        peak_power_w=power.peak_w,
        throttled_s=power.throttled_s,
        baseline_bytes=round(baseline),
        samples=int(line.values.size),
        active_s=active_s,
        exit_status=run.manifest.exit_status,
        notes=tuple(notes),
        step_time_ns=step_times(rank).median_ns,
        step_energy_j=None if step is None else step.energy_j,
    )


def _held_ns(line: SampleLine) -> I64:
    """Return how long each value is valid in ns: until the next one; for the last sample the usual time, else 0."""
    gaps = np.diff(line.t_ns)
    last = 0 if line.steps or not gaps.size else int(np.median(gaps))
    return np.append(gaps, last)


def _duration(run: Run, active_s: float | None, span_s: float | None) -> tuple[float | None, str]:
    """Return the duration of the run in seconds, and a description of it if it is not the command's."""
    command_s = _command_s(run)
    if command_s is not None:
        return command_s, ""
    if span_s is None:
        return None, "The run has no times, so it has no duration and no mean over time."
    if active_s:
        return active_s, "The run has no command, so its duration is the time with memory above the first sample."
    return span_s, "The memory never rose above the first sample, so the duration is that of the whole log."


def _command_s(run: Run) -> float | None:
    """Return the duration of the command in seconds; None if the run has no command, or if it was simulated."""
    if not run.has_measured_times:
        return None
    started, ended = run.manifest.started_ns, run.manifest.ended_ns
    return (ended - started) / 1e9 if started and ended else None


def _span_ns(run: Run, line: SampleLine, above: F64) -> tuple[int, int]:
    """Return the start and end of the run: those of the command; for a log, of the active time or of all of it."""
    started, ended = run.manifest.started_ns, run.manifest.ended_ns
    if started and ended:
        return int(started), int(ended)
    active = np.flatnonzero(above > 0)
    first, last = (int(active[0]), int(active[-1])) if active.size else (0, line.t_ns.size - 1)
    return int(line.t_ns[first]), int(line.t_ns[min(last + 1, line.t_ns.size - 1)])


@dataclass(frozen=True)
class _Power:
    """Energy, power and throttling of one GPU between two moments."""

    energy_j: float | None
    uncertainty_j: float | None
    mean_w: float | None
    peak_w: float | None
    throttled_s: float | None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, rank: Rank, device_idx: int, span_ns: tuple[int, int]) -> _Power:
        """Return them from the longest energy window of the GPU; without one, from its samples of power."""
        table = rank.table("samples", ("t_ns", "device_idx", "throttle", *POWER_COLUMNS))
        times = to_numbers(table["t_ns"])
        mine = (to_numbers(table["device_idx"]) == device_idx) & (times >= span_ns[0]) & (times <= span_ns[1])
        average, instant = (known_values(table, name, mine) for name in POWER_COLUMNS)
        readings = average if average[1].size else instant
        peaks = instant if instant[1].size else average
        summed_j, mean_w = _integral(*readings)
        throttled_s = _throttled_s(*known_values(table, "throttle", mine))
        peak_w = float(peaks[1].max()) if peaks[1].size else None
        window = _whole_window(rank, device_idx)
        if window is None or window["energy_j"] is None:
            reason = _no_energy(rank, device_idx, window)
            notes = (f"The energy is integrated from samples of the power: {reason}.",) if summed_j is not None else ()
            return cls(summed_j, None, mean_w, peak_w, throttled_s, notes)
        seconds = (window["end_ns"] - window["start_ns"]) / 1e9
        own_throttled = window["throttled_ns"]
        return cls(
            window["energy_j"],
            window["uncertainty_j"],
            window["energy_j"] / seconds if seconds else mean_w,
            peak_w,
            throttled_s if own_throttled is None else own_throttled / 1e9,
        )


def _integral(times: I64, watts: F64) -> tuple[float | None, float | None]:
    """Return energy in J and mean power in W between the first and last sample; None with fewer than two."""
    if watts.size < 2 or times[-1] == times[0]:
        return None, float(watts[0]) if watts.size else None
    gaps_s = np.diff(times) / 1e9
    joules = float((gaps_s * (watts[1:] + watts[:-1]) / 2).sum())
    return joules, joules / float(gaps_s.sum())


def _throttled_s(times: I64, masks: F64) -> float | None:
    """Return the seconds in which the clock was throttled; None if the reasons were not sampled."""
    if not masks.size:
        return None
    held = (np.mod(masks, 2.0**52).astype(np.int64) & THROTTLED) != 0  # a damaged mask can be too large for an integer
    return float((np.diff(times) / 1e9)[held[:-1]].sum())


def _whole_window(rank: Rank, device_idx: int) -> dict[str, Any] | None:
    """Return the energy window of the whole run on a GPU, which has no name."""
    rows = rank.table("windows").to_pylist()
    mine = [row for row in rows if row["device_idx"] == device_idx and not row["name"]]
    return max(mine, key=lambda row: row["end_ns"] - row["start_ns"], default=None)


def _no_energy(rank: Rank, device_idx: int, window: dict[str, Any] | None) -> str:
    """Return why the energy counter has no energy for the run."""
    if not rank.manifest.device(device_idx).energy_counter:
        return "the run has no energy counter"
    return (
        "the end of the run was not seen"
        if window is None
        else "the run is shorter than the counter's update interval, or was not watched from start to end"
    )
