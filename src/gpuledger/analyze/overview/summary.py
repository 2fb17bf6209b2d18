"""The headline metrics of every view of a rank."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.graph_pools import graph_pool_notes
from gpuledger.analyze.memory.instant import Instant, find_peak
from gpuledger.analyze.memory.lifetimes import read_numbers
from gpuledger.analyze.memory.peaks import allocator_peaks
from gpuledger.analyze.step.steps import StepTimes, step_times
from gpuledger.analyze.step.work import work_note
from gpuledger.model.energy_window import NOTES_WITHOUT_ENERGY
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

LEAST_MORE_RESERVED = 1.05
"""A peak of reserved bytes after the recorded steps has a note if it is above this multiple of theirs. A few more
segments are usual."""


@dataclass(frozen=True)
class Summary:
    """The headline metrics of one device of one rank.

    ``peak_allocated_bytes`` and ``peak_reserved_bytes`` are those of the whole program,
    ``recorded_peak_allocated_bytes`` and ``recorded_peak_reserved_bytes`` those of the recorded steps, which contain
    ``instant``. ``capacity_bytes`` and reserved bytes are None if unknown.
    """

    rank: int
    device_idx: int
    device_name: str
    recorder: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    recorded_peak_allocated_bytes: int
    recorded_peak_reserved_bytes: int | None
    capacity_bytes: int | None
    instant: Instant
    step_time: StepTimes
    notes: tuple[str, ...]

    @property
    def outside_peaks(self) -> dict[str, tuple[int, int]]:
        """Return the peaks outside the recorded steps that are higher, and by how much.

        ``allocated`` and ``reserved`` -> bytes, and bytes more than in the recorded steps.
        """
        found = {}
        if self.peak_allocated_bytes > self.recorded_peak_allocated_bytes:
            more_bytes = self.peak_allocated_bytes - self.recorded_peak_allocated_bytes
            found["allocated"] = (self.peak_allocated_bytes, more_bytes)
        reserved, recorded = self.peak_reserved_bytes or 0, self.recorded_peak_reserved_bytes or 0
        if self.device_idx >= 0 and recorded and reserved > LEAST_MORE_RESERVED * recorded:
            found["reserved"] = (reserved, reserved - recorded)
        return found

    @property
    def outside_notes(self) -> tuple[str, ...]:
        """Return the notes on higher peaks outside the recorded steps, for views that do not show these beside ours."""
        return tuple(
            f"Outside the recorded steps, up to {format_bytes(size)} were {word}, {format_bytes(more)} more than in "
            "them."
            for word, (size, more) in self.outside_peaks.items()
        )


def summarize(rank: Rank, device_idx: int | None = None) -> Summary:
    """Return the summary of one device; None selects the one with the highest peak.

    Raises:
        EmptyRunError: no block was recorded.
        UsageError: there is no such device.
    """
    instant = find_peak(rank, device_idx)
    device = instant.device_idx
    peaks = allocator_peaks(rank, device)
    return Summary(
        rank=rank.number,
        device_idx=device,
        device_name=device_name(rank, device),
        recorder=rank.manifest.recorder_name,
        **asdict(peaks),
        capacity_bytes=capacity_bytes(rank, device),
        instant=instant,
        step_time=step_times(rank),
        notes=_notes(rank, device),
    )


def device_name(rank: Rank, device_idx: int) -> str:
    """Return a device's name; torch's name for it if the manifest has none."""
    return rank.manifest.device(device_idx).name or ("CPU" if device_idx < 0 else f"cuda:{device_idx}")


def capacity_bytes(rank: Rank, device_idx: int) -> int | None:
    """Return the total bytes of the device; None if neither manifest nor samples have them.

    Source: NVML memory info if the GPU was sampled, or else torch or the system.
    """
    readings = read_numbers(rank, "samples", "total_bytes", device_idx)
    if readings.size and readings.max() > 0:
        return int(readings.max())
    return rank.manifest.device(device_idx).total_bytes


def recording_notes(rank: Rank) -> list[str]:
    """Return the notes on the recording of a rank: what was not measured or left out, and which parts are damaged."""
    damaged = (f"A part of the recording is damaged: {part}" for part in rank.manifest.damaged)
    return [*rank.manifest.notes, *rank.manifest.left_out, *_meshes(rank), *damaged]


def _meshes(rank: Rank) -> list[str]:
    """Return a note on a program with several device meshes: coordinates of ranks are those in one of them."""
    meshes, shown = rank.manifest.meshes, rank.manifest.mesh
    if len(meshes) < 2 or shown is None:
        return []
    sizes = ["×".join(f"{name}={size}" for name, size in one.sizes().items()) for one in (*meshes, shown)]
    text = f"The program has {len(meshes)} device meshes: {', '.join(sizes[:-1])}."
    return [f"{text} Coordinates of ranks are those in {sizes[-1]}."]


def _notes(rank: Rank, device_idx: int) -> tuple[str, ...]:
    """Return the notes on a device, without the note on missing energy for CPU tensors."""
    notes = recording_notes(rank)
    notes += graph_pool_notes(rank, device_idx)
    of_work = work_note(rank, device_idx)
    notes += [] if of_work is None else [of_work]
    if device_idx < 0:
        notes += _later_steps(rank)
        notes = [note for note in notes if not note.startswith(NOTES_WITHOUT_ENERGY)]
    return tuple(dict.fromkeys(notes))


def _later_steps(rank: Rank) -> list[str]:
    """Return a note that nothing counts CPU tensors after the recorded steps, if the program went on after them."""
    window, seen = rank.manifest.window, rank.manifest.steps_seen or 0
    if window is None or window.first_step is None or window.last_step is None or seen <= window.last_step:
        return []
    first, last = f"{window.first_step:,}", f"{window.last_step:,}"
    steps = f"in step {first}" if first == last else f"in steps {first} to {last}"
    return [
        f"CPU tensors were recorded {steps} only. The peak of the whole program can be higher than shown: use --steps "
        "to record others."
    ]
