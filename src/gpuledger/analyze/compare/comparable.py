"""Reasons why two runs are hard to compare, as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger.analyze.allocator.alloc_conf import alloc_conf_text
from gpuledger.analyze.step.steps import BUSY_FRAC, StepTimes, step_times
from gpuledger.units import format_frac, name_ranks

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run

_SAME_FACTS = {"recorder_name": "Recorder", "torch_version": "Torch", "cuda_version": "CUDA"}
"""Attribute of a rank's manifest -> its name in a note. A difference can explain differences in metrics."""


def unfinished(run: Run) -> list[str]:
    """Return notes if a run is still being written or was interrupted, and if its program failed."""
    said = {
        "running": "is still being written. Its values are those so far.",
        "cut off": "is incomplete: its recording was cut off.",
    }
    status = run.manifest.status
    notes = [f"{run.name} {said[status]}"] if status is not None and status in said else []
    failure = run.manifest.failure
    return [*notes, f"{run.name} ended with {failure}. Its values are those until then."] if failure else notes


def compare_runs(before: Run, after: Run, compared: int) -> list[str]:
    """Return notes on differences between the runs as a whole."""
    notes = [*unfinished(before), *unfinished(after)]
    versions = [run.manifest.schema_version for run in (before, after)]
    if versions[0] != versions[1]:
        notes.append(f"Schema versions differ: {before.name} has {versions[0]}, {after.name} has {versions[1]}.")
    counts = [len(run.ranks) for run in (before, after)]
    if counts[0] != counts[1]:
        which = "the rank that both have is" if compared == 1 else f"the {compared} ranks that both have are"
        notes.append(
            f"{before.name} has {_ranks(counts[0])}, {after.name} has {_ranks(counts[1])}. Only {which} compared."
        )
    return notes


def own_notes(before: Run, after: Run) -> list[str]:
    """Return the runs' own notes, each with the name of its run, or with both names, and with the ranks that have it.

    If both runs have the same name, "before" or "after" is added to it.
    """
    notes = [_notes_by_ranks(run) for run in (before, after)]
    is_same = before.name == after.name
    both = before.name if is_same else f"{before.name} and {after.name}"
    names = [f"{before.name} (before)", f"{after.name} (after)"] if is_same else [before.name, after.name]
    shared = [f"{both}{who}: {note}" for note, who in notes[0].items() if notes[1].get(note) == who]
    alone = [
        f"{name}{who}: {note}"
        for name, mine, other in ((names[0], notes[0], notes[1]), (names[1], notes[1], notes[0]))
        for note, who in mine.items()
        if other.get(note) != who
    ]
    return [*shared, *alone]


def _notes_by_ranks(run: Run) -> dict[str, str]:
    """Return each note with the ranks that have it, such as ``, rank 1``; "" where all have it."""
    have: dict[str, list[int]] = {}
    for rank in run.ranks:
        for note in dict.fromkeys(rank_notes(rank)):
            have.setdefault(note, []).append(rank.number)
    return {note: "" if len(who) == len(run.ranks) else f", {name_ranks(who)}" for note, who in have.items()}


def rank_notes(rank: Rank) -> list[str]:
    """Return a rank's own notes, including those on damaged parts."""
    damaged = (f"A part of the recording is damaged: {part}" for part in rank.manifest.damaged)
    return [*rank.manifest.notes, *damaged, *_busy_host(rank)]


def _busy_host(rank: Rank) -> list[str]:
    """Return a note if the CPU was probably busy with other work, so that times are longer than usual."""
    times, sampler = step_times(rank), rank.manifest.sampler
    if times.median_ns and times.spread_ns is not None and times.spread_ns > BUSY_FRAC * times.median_ns:
        return [f"{_varying(times)} the median: the host was busy, or the steps differ."]
    waited = rank.manifest.cpu_wait_frac
    if waited is not None and waited > BUSY_FRAC:
        return [f"The host was busy: the program waited for a CPU {format_frac(waited, 0)} of the time."]
    if sampler is None or not sampler.readings or sampler.on_time is None:
        return []
    due = sampler.readings + (sampler.missed or 0)
    late = 1 - sampler.on_time / due
    return [f"The host was busy: {format_frac(late)} of {due:,} samples were late."] if late > BUSY_FRAC else []


def _varying(times: StepTimes) -> str:
    """Return how the slowest steps differ from the median, or the fastest ones if they differ more."""
    median_ns, p95_ns, p5_ns = times.median_ns or 0, times.p95_ns or 0, times.p5_ns
    if p5_ns is not None and median_ns - p5_ns > p95_ns - median_ns:
        return f"The fastest steps take {format_frac(1 - p5_ns / median_ns, 0)} less than"
    longer = p95_ns / median_ns - 1
    if longer < 1:
        return f"The slowest steps take {format_frac(longer, 0)} longer than"
    return f"The slowest steps take {1 + longer:,.1f} times as long as"


def compare_ranks(before: Rank, after: Rank) -> list[str]:
    """Return notes on differences between two ranks: GPU, recorder, versions, number of recorded steps."""
    notes = []
    old, new = (_cards(rank) for rank in (before, after))
    if old and new and old != new:
        notes.append(f"Different devices: {old} before, {new} after. Times, energy and rounding differ between GPUs.")
    for key, title in _SAME_FACTS.items():
        was, now = getattr(before.manifest, key), getattr(after.manifest, key)
        if was != now and None not in (was, now) and "" not in (was, now):
            notes.append(f"{title} differs: {was} before, {now} after.")
    texts = [_settings(rank) for rank in (before, after)]
    if None not in texts and texts[0] != texts[1]:
        notes.append(f"Allocator settings differ: {texts[0]} before, {texts[1]} after.")
    return notes


def _settings(rank: Rank) -> str | None:
    settings = rank.manifest.allocator_settings
    return None if settings is None else alloc_conf_text(settings)


def _cards(rank: Rank) -> str:
    """Return the names of a rank's devices; "" if unknown."""
    return ", ".join(device.name for device in rank.manifest.devices if device.name)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
