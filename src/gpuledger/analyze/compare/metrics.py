"""The metrics by which runs are compared and checked: one value per name, unit and device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.lifetimes import device_indices, read_numbers
from gpuledger.analyze.memory.peaks import allocator_peaks
from gpuledger.analyze.step.energy import step_energy
from gpuledger.analyze.step.rates import find_rates
from gpuledger.analyze.step.steps import step_times
from gpuledger.analyze.step.times import break_down_time

if TYPE_CHECKING:
    from gpuledger.model.run import Rank


@dataclass(frozen=True)
class MetricKind:
    """A metric: its title, its unit (B, ns, J or 1), and whether it is exactly repeatable.

    ``exact`` metrics are counted, not sampled: the same program gives the same value, so a limit needs no tolerance.
    """

    title: str
    unit: str
    exact: bool
    higher_is_worse: bool = True


KINDS: dict[str, MetricKind] = {
    "peak_allocated_bytes": MetricKind("peak allocated", "B", exact=True),
    "peak_reserved_bytes": MetricKind("peak reserved", "B", exact=True),
    "peak_process_bytes": MetricKind("peak of the process", "B", exact=False),
    "peak_bytes": MetricKind("peak above baseline", "B", exact=False),
    "step_time_ns": MetricKind("step time", "ns", exact=False),
    "gpu_busy_frac": MetricKind("GPU busy", "1", exact=False, higher_is_worse=False),
    "step_energy_j": MetricKind("energy per step", "J", exact=False),
    "sample_energy_j": MetricKind("energy per sample", "J", exact=False),
    "energy_j": MetricKind("energy", "J", exact=False),
}
"""Every metric by its name, in display order. Peaks are those of the whole program."""


@dataclass(frozen=True)
class Metric:
    """One metric of one device. ``spread`` is its variation within the run; None if unknown."""

    name: str
    value: float
    source: str
    spread: float | None = None


def metric_devices(rank: Rank) -> tuple[int, ...]:
    """Return the devices of a rank that have metrics: those with blocks, or else those that were sampled."""
    read = rank.table("samples", ("device_idx",)).column(0).to_pylist()
    return device_indices(rank) or tuple(sorted(set(read)))


def measure(rank: Rank, device_idx: int) -> dict[str, Metric]:
    """Return name -> metric of one device. Metrics that the run does not have are left out.

    Raises:
        InputError: a part of the run is damaged.
    """
    found = [
        *_allocator_peaks(rank, device_idx),
        *_watched(rank, device_idx),
        *_process_peak(rank, device_idx),
        *_step_time(rank, device_idx),
        *_busy(rank, device_idx),
        *_energy(rank, device_idx),
    ]
    return {metric.name: metric for metric in found}


def _allocator_peaks(rank: Rank, device_idx: int) -> list[Metric]:
    """Return the peaks of allocated and reserved bytes of the whole program, inside and outside the recorded steps.

    Source: caching allocator's history, exact; outside the recorded steps its peak counters, which a program can reset.
    """
    if device_idx not in device_indices(rank):
        return []
    peaks = allocator_peaks(rank, device_idx)
    both = {
        "peak_allocated_bytes": (peaks.peak_allocated_bytes, peaks.recorded_peak_allocated_bytes),
        "peak_reserved_bytes": (peaks.peak_reserved_bytes, peaks.recorded_peak_reserved_bytes),
    }
    counter, history = "allocator's peak counter, outside the recorded steps", "allocator's history"
    return [
        Metric(name, most, counter if most > inside else history)
        for name, (most, inside) in both.items()
        if most is not None and inside is not None
    ]


def _watched(rank: Rank, device_idx: int) -> list[Metric]:
    """Return memory above the first sample, and energy, of a GPU that was only monitored.

    Source: NVML, sampled; energy counter.
    """
    if device_indices(rank):
        return []
    used = read_numbers(rank, "samples", "used_bytes", device_idx)
    used = used[used >= 0]
    peak = [Metric("peak_bytes", int(used.max() - used[0]), "GPU samples")] if used.size else []
    rows = [row for row in rank.table("windows").to_pylist() if row["device_idx"] == device_idx]
    longest = max(rows, key=lambda row: row["end_ns"] - row["start_ns"], default=None)
    if longest is None or longest["energy_j"] is None:
        return peak
    return [*peak, Metric("energy_j", longest["energy_j"], "NVML energy counter", longest["uncertainty_j"])]


def _process_peak(rank: Rank, device_idx: int) -> list[Metric]:
    """Return the largest sampled memory of this process on the GPU.

    Source: NVML process list, at the times of the samples.
    """
    pids, sizes = (read_numbers(rank, "process_samples", name, device_idx) for name in ("pid", "bytes"))
    mine = sizes[(pids == rank.manifest.pid) & (sizes >= 0)]
    return [Metric("peak_process_bytes", int(mine.max()), "NVML process list, sampled")] if mine.size else []


def _step_time(rank: Rank, device_idx: int) -> list[Metric]:
    """Return the step time. On the CPU, its spread includes how long the program waited for one."""
    times = step_times(rank)
    if times.median_ns is None:
        return []
    spread = times.spread_ns
    if device_idx < 0 and spread is not None:
        spread = max(spread, round((rank.manifest.cpu_wait_frac or 0.0) * times.median_ns))
    return [Metric("step_time_ns", times.median_ns, times.source, spread)]


def _busy(rank: Rank, device_idx: int) -> list[Metric]:
    """Return the fraction of a step in which the GPU is busy.

    Source: Kineto in the profiled steps, divided by the unprofiled step, or by the profiled one if that was longer.
    """
    times = break_down_time(rank, device_idx)
    if times is None or times.on_host or not times.step_ns:
        return []
    return [Metric("gpu_busy_frac", times.busy_ns / times.step_ns, "Kineto, timing measurement")]


def _energy(rank: Rank, device_idx: int) -> list[Metric]:
    """Return the energy of a step of the energy measurement, and of a sample if the batch size is known.

    Source: NVML energy counter.
    """
    step, rates = step_energy(rank, device_idx), find_rates(rank, device_idx)
    if step is None:
        return _energy_of_windows(rank, device_idx)
    found = [Metric("step_energy_j", step.energy_j, "energy measurement", step.uncertainty_j)]
    if rates is not None and rates.sample_energy_j is not None and rates.step_samples:
        off_j = step.uncertainty_j / rates.step_samples
        found.append(Metric("sample_energy_j", rates.sample_energy_j, f"energy measurement, {rates.source}", off_j))
    return found


def headline(rank: Rank) -> dict[str, float]:
    """Return name -> value for the device with the highest peak; empty if nothing was recorded."""
    found = [measure(rank, device_idx) for device_idx in metric_devices(rank)]
    peaks = [one["peak_allocated_bytes"].value if "peak_allocated_bytes" in one else -1.0 for one in found]
    most = found[peaks.index(max(peaks))] if found else {}
    return {name: metric.value for name, metric in most.items()}


def _energy_of_windows(rank: Rank, device_idx: int) -> list[Metric]:
    """Return the energy of a step: of all energy windows, divided by the number of steps inside them.

    Source: NVML energy counter.
    """
    windows, steps = rank.table("windows").to_pylist(), rank.table("steps").to_pylist()
    mine = [row for row in windows if row["device_idx"] == device_idx and row["energy_j"] is not None]
    count = sum(
        any(row["start_ns"] <= step["start_ns"] and step["end_ns"] <= row["end_ns"] for row in mine)
        for step in steps
        if step["device_idx"] == device_idx
    )
    if not count:
        return []
    unsure = [row["uncertainty_j"] for row in mine]
    spread = None if None in unsure else sum(unsure) / count
    return [Metric("step_energy_j", sum(row["energy_j"] for row in mine) / count, "NVML energy counter", spread)]
