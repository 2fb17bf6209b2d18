"""The figures at the head of every view of a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.instant import Instant, find_peak
from gpuledger.analyze.memory.live import allocated_curve, read_lives, read_numbers, reserved_curve
from gpuledger.analyze.step.steps import StepTimes, step_times
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.model.run import Rank


@dataclass(frozen=True)
class Summary:
    """One device of one rank in a few figures.

    ``later_peak_bytes`` is set when the allocator's own counters saw more allocated outside the recorded window than
    inside it. ``capacity_bytes`` is None where the device does not tell.
    """

    rank: int
    device_idx: int
    device_name: str
    recorder: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    capacity_bytes: int | None
    instant: Instant
    step_time: StepTimes
    later_peak_bytes: int | None
    notes: tuple[str, ...]


def summarize(rank: Rank, device_idx: int | None = None) -> Summary:
    """Return the summary of one device; None takes the one whose peak is highest.

    Raises:
        EmptyRunError: no block was recorded.
        UsageError: there is no such device.
    """
    instant = find_peak(rank, device_idx)
    device = instant.device_idx
    peak = allocated_curve(read_lives(rank, device)).at(instant.index)
    later = _later_peak(rank, device, peak)
    return Summary(
        rank=rank.number,
        device_idx=device,
        device_name=device_name(rank, device),
        recorder=rank.manifest.recorder_name,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=int(reserved_curve(rank, device).bytes.max()),
        capacity_bytes=capacity_bytes(rank, device),
        instant=instant,
        step_time=step_times(rank),
        later_peak_bytes=later,
        notes=_notes(rank, later, peak),
    )


def device_name(rank: Rank, device_idx: int) -> str:
    """Return what a device is called; torch's word for it where the manifest does not know it."""
    return rank.manifest.device(device_idx).name or ("CPU" if device_idx < 0 else f"cuda:{device_idx}")


def capacity_bytes(rank: Rank, device_idx: int) -> int | None:
    """Return the bytes the device has in all; None where neither manifest nor readings tell.

    Source: NVML memory info where the card was read, else what torch or the system reports.
    """
    readings = read_numbers(rank, "samples", "total_bytes", device_idx)
    if readings.size and readings.max() > 0:
        return int(readings.max())
    return rank.manifest.device(device_idx).total_bytes


def _later_peak(rank: Rank, device_idx: int, peak_bytes: int) -> int | None:
    """Return the counters' highest peak where the recorded one is lower.

    Source: the allocator's peak counter, exact; a reset of peak statistics by the program hides what came before.
    """
    counted = read_numbers(rank, "counters", "peak_allocated_bytes", device_idx)
    highest = int(counted.max()) if counted.size else 0
    return highest if highest > peak_bytes else None


def _notes(rank: Rank, later_bytes: int | None, peak_bytes: int) -> tuple[str, ...]:
    damaged = (f"A part of the recording is damaged: {part}" for part in rank.manifest.damaged)
    notes = [*rank.manifest.notes, *rank.manifest.left_out, *damaged]
    if later_bytes is not None:
        notes.append(
            f"The allocator's counters saw {format_bytes(later_bytes)} allocated outside the recorded window, "
            f"more than the {format_bytes(peak_bytes)} inside it."
        )
    return tuple(dict.fromkeys(notes))
