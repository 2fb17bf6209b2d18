"""Select an instant of a recording: the peak, the end, or a time since its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.growth_origin import program_line
from gpuledger.analyze.memory.lifetimes import (
    I64,
    Lives,
    allocated_curve,
    pick_device,
    read_labels,
    read_lives,
    read_numbers,
    title,
)
from gpuledger.analyze.memory.lines.running import RunningModules
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.errors import UsageError
from gpuledger.model.accounts import PHASES
from gpuledger.units import format_ns, parse_duration_ns

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

OUTSIDE_STEPS = 0


@dataclass(frozen=True)
class Instant:
    """The state of one device just after its event ``index``.

    ``t_ns`` is that event's host time. ``step``, ``phase`` and ``module`` are those of the program at that time;
    ``module`` is "" unless a module allocated at this event. ``label`` is ``peak``, ``end`` or the requested time.
    ``line`` is the line of this event's allocation in a program without steps and modules, or if it allocates what
    belongs to a module that is not running; otherwise "".
    """

    device_idx: int
    index: int
    t_ns: int
    step: int
    phase: str
    module: str
    label: str
    line: str = ""


def find_peak(rank: Rank, device_idx: int | None = None, step: int | None = None) -> Instant:
    """Return the first instant with the highest allocated bytes.

    Args:
        rank: One process of a run.
        device_idx: None selects the device with the highest peak.
        step: Search only this step.

    Raises:
        EmptyRunError: no block was recorded.
        UsageError: there is no such device, or the step was not recorded.

    Source: caching allocator's history, exact; excludes context, libraries and other processes.
    """
    device = pick_device(rank, device_idx)
    lives = read_lives(rank, device)
    curve = allocated_curve(lives)
    if step is None:

        def describe() -> Instant:
            return _describe(rank, lives, int(curve.index[np.argmax(curve.bytes)]), "peak")

        return rank.computed(f"peak of device {device}", describe)
    first, last = step_range(rank, device, step)
    begin = max(0, int(np.searchsorted(curve.index, first, side="right")) - 1)
    end = int(np.searchsorted(curve.index, last, side="right"))
    index = int(curve.index[begin + np.argmax(curve.bytes[begin:end])]) if end > begin else first
    return _describe(rank, lives, max(index, first), "peak")


def resolve_instant(rank: Rank, at: str = "peak", device_idx: int | None = None, step: int | None = None) -> Instant:
    """Return the instant named by ``at``.

    Args:
        rank: One process of a run.
        at: ``peak``, ``end``, or a time such as ``1.5s`` or ``350ms`` since the start of the recording.
        device_idx: None selects the device with the highest peak.
        step: ``peak`` and ``end`` are those of this step; a time counts from its start.

    Raises:
        EmptyRunError: no block was recorded.
        UsageError: ``at`` is none of these or after the end; no such device; the step was not recorded.
    """
    if at == "peak":
        return find_peak(rank, device_idx, step)
    after_ns = None if at == "end" else _parse_time(at)
    device = pick_device(rank, device_idx)
    lives = read_lives(rank, device)
    if after_ns is None:
        last = lives.last_index if step is None else step_range(rank, device, step)[1]
        return _describe(rank, lives, last, at)
    if not rank.manifest.recorder.has_measured_times:
        raise UsageError(
            f"--at {at}: nothing in the run has a time, because its GPU is simulated", hint="Use --at peak or --at end"
        )
    start_ns = opened_ns(rank, device) if step is None else _step_start_ns(rank, device, step)
    lasted_ns = time_of(rank, lives, lives.last_index) - start_ns
    if after_ns > lasted_ns:
        raise UsageError(
            f"--at {at}: after the end of the recording", hint=f"Choose a time up to {format_ns(lasted_ns)}"
        )
    return _describe(rank, lives, _last_event_until(rank, device, start_ns + after_ns), at)


def step_range(rank: Rank, device_idx: int, step: int) -> tuple[int, int]:
    """Return the first and last event index of a recorded step.

    Raises:
        UsageError: the step was not recorded.
    """
    numbers, first, last = _step_bounds(rank, device_idx)
    place = np.flatnonzero((numbers == step) & (first >= 0))
    if not place.size:
        known = ", ".join(str(number) for number in numbers[first >= 0].tolist())
        hint = f"Choose a recorded step: {known}" if known else "The run has no recorded step: leave --step out"
        raise UsageError(f"{title(rank)}: step {step} was not recorded", hint=hint)
    return int(first[place[0]]), int(max(first[place[0]], last[place[0]]))


def opened_ns(rank: Rank, device_idx: int) -> int:
    """Return the host time of the start of the recording; of the first allocation if no counter reading has it."""
    reasons, labels = read_labels(rank, "counters", "reason", device_idx)
    times = read_numbers(rank, "counters", "t_ns", device_idx)
    opening = times[reasons == labels.index("open")] if "open" in labels else times[:0]
    if opening.size:
        return int(opening.min())
    known = read_numbers(rank, "blocks", "alloc_ns", device_idx, NEVER)
    return int(known.min()) if known.size and known.min() != NEVER else 0


def time_of(rank: Rank, lives: Lives, index: int) -> int:
    """Return the host time of event ``index``, or of the last event before it with a known time; 0 if none has one."""
    if not rank.manifest.recorder.has_measured_times:
        return 0
    best_index, best_ns = -1, None
    for marks, column in (
        (lives.alloc_index, "alloc_ns"),
        (lives.free_requested_index, "free_requested_ns"),
        (lives.free_index, "free_ns"),
    ):
        known = np.where(marks <= index, marks, -1)
        place = int(np.argmax(known))
        if known[place] > best_index:
            best_index = int(known[place])
            best_ns = int(read_numbers(rank, "blocks", column, lives.device_idx)[place])
        if best_index == index:
            break
    return opened_ns(rank, lives.device_idx) if best_ns is None else best_ns


def module_paths(rank: Rank) -> dict[int, str]:
    """Return ``module_id -> path``."""

    def read() -> dict[int, str]:
        table = rank.table("modules", ("module_id", "path"))
        return dict(zip(table["module_id"].to_pylist(), table["path"].to_pylist(), strict=True))

    return rank.computed("paths of modules", read)


def running_module(phase: str, path: str | None) -> str:
    """Return the path of the module of a block that is allocated in a phase; "" if no module can run in it.

    Such a block is of a module that gets it later, as its input or its weight.
    """
    return "" if phase in ("setup", "between") else path or ""


def module_classes(rank: Rank) -> dict[str, str]:
    """Return ``path -> class name`` of every module."""
    table = rank.table("modules", ("path", "class_name"))
    return dict(zip(table["path"].to_pylist(), table["class_name"].to_pylist(), strict=True))


def _parse_time(at: str) -> int:
    try:
        return parse_duration_ns(at)
    except UsageError as error:
        raise UsageError(
            f"--at {at}: not a valid time", hint="Use peak, end, or a time such as 1.5s or 350ms"
        ) from error


def _last_event_until(rank: Rank, device_idx: int, t_ns: int) -> int:
    last = -1
    for index_column, time_column in (
        ("alloc_index", "alloc_ns"),
        ("free_requested_index", "free_requested_ns"),
        ("free_index", "free_ns"),
    ):
        times = read_numbers(rank, "blocks", time_column, device_idx, NEVER)
        until = read_numbers(rank, "blocks", index_column, device_idx)[times <= t_ns]
        last = max(last, int(until.max()) if until.size else -1)
    return last


def _step_bounds(rank: Rank, device_idx: int) -> tuple[I64, I64, I64]:
    first, last = (read_numbers(rank, "steps", name, device_idx) for name in ("start_index", "end_index"))
    return read_numbers(rank, "steps", "step", device_idx), first, last


def _step_start_ns(rank: Rank, device_idx: int, step: int) -> int:
    step_range(rank, device_idx, step)
    starts = read_numbers(rank, "steps", "start_ns", device_idx)
    return int(starts[read_numbers(rank, "steps", "step", device_idx) == step][0])


def _describe(rank: Rank, lives: Lives, index: int, label: str) -> Instant:
    step, phase, module, line = _place_of(rank, lives, index)
    if not _can_have_steps(rank):
        step, phase = OUTSIDE_STEPS, "" if phase in ("setup", "between") else phase
        born = np.flatnonzero(lives.alloc_index == index)[:1]
        stacks = read_numbers(rank, "blocks", "stack_id", lives.device_idx)[born] if index >= 0 else born
        line = program_line(rank, int(stacks[0])) if stacks.size and not phase else ""
    return Instant(lives.device_idx, index, time_of(rank, lives, index), step, phase, module, label, line)


def _can_have_steps(rank: Rank) -> bool:
    """Return False for a program without modules in which no step was seen. What it allocates is marked as step 1."""
    return bool(rank.table("steps", ("step",)).num_rows or module_paths(rank))


def _place_of(rank: Rank, lives: Lives, index: int) -> tuple[int, str, str, str]:
    """Return step, phase and module at ``index``, from the block allocated there, or else from the phases and steps.

    With them, the line that runs, if the block is of another module.
    """
    device = lives.device_idx
    born = np.flatnonzero(lives.alloc_index == index) if index >= 0 else np.zeros(0, dtype=np.int64)
    if born.size:
        block = int(born[0])
        codes, labels = read_labels(rank, "blocks", "phase", device)
        module_id, line = RunningModules(rank, device).at(block)
        step = int(read_numbers(rank, "blocks", "step", device)[block])
        phase = labels[codes[block]] if codes[block] >= 0 else ""
        return step, phase, running_module(phase, module_paths(rank).get(module_id)), line
    first, last = (read_numbers(rank, "spans", name, device) for name in ("start_index", "end_index"))
    kinds, kind_words = read_labels(rank, "spans", "kind", device)
    is_phase = kinds == kind_words.index("phase") if "phase" in kind_words else np.zeros(kinds.size, dtype=bool)
    inside = np.flatnonzero(is_phase & (first >= 0) & (first <= index) & (last >= index))
    if inside.size:
        codes, labels = read_labels(rank, "spans", "phase", device)
        return int(read_numbers(rank, "spans", "step", device)[inside[0]]), labels[codes[inside[0]]], "", ""
    numbers, begin, end = _step_bounds(rank, device)
    within = numbers[(begin >= 0) & (begin <= index) & (end >= index)]
    if within.size:
        return int(within[0]), "between", "", ""
    _, known = read_labels(rank, "blocks", "phase", device)
    return OUTSIDE_STEPS, PHASES[0] if any(known) else "", "", ""
