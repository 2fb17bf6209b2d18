"""Compare several runs: each metric relative to the first run's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.samples.repeats import gathered, repeat_of
from gpuledger.analyze.samples.series import told_apart
from gpuledger.analyze.samples.watched import Watched, watched
from gpuledger.errors import EmptyRunError
from gpuledger.units import share_frac

if TYPE_CHECKING:
    from gpuledger.model.run import Run

FIGURES = {
    "peak_bytes": "B",
    "mean_active_bytes": "B",
    "area_mib_s": "MiB·s",
    "duration_s": "s",
    "active_s": "s",
    "step_time_ns": "ns",
    "step_energy_j": "J",
    "energy_j": "J",
    "mean_power_w": "W",
    "peak_power_w": "W",
    "throttled_s": "s",
}
"""Compared metrics in display order, with their units."""


@dataclass(frozen=True)
class ComparedRun:
    """One GPU of one run: its metrics, and each as a multiple of the first run's; None if one is missing.

    If a command was repeated, the metrics are means of ``repeats`` runs, and ``spread`` has the lowest and the highest
    value of each.
    """

    figures: Watched
    ratio_to_first: dict[str, float | None]
    repeats: int = 1
    spread: dict[str, tuple[float, float]] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """Return the value of one of :data:`FIGURES`."""
        value: float | None = getattr(self.figures, name)
        return value


@dataclass(frozen=True)
class Comparison:
    """GPUs of runs in the given order. The first is the reference."""

    rows: tuple[ComparedRun, ...]
    notes: tuple[str, ...]


def compare(runs: Sequence[Run]) -> Comparison:
    """Return the metrics of every GPU of every run, each relative to the first.

    Raises:
        EmptyRunError: no run has memory over time.
    """
    found: list[tuple[tuple[object, ...], tuple[Run, Watched]]] = []
    notes: list[str] = []
    for run in runs:
        own = watched(run)
        if not own:
            notes.append(f"{run.name}: the run has no memory samples.")
        notes += [f"{run.name}: {note}" for note in dict.fromkeys(note for one in own for note in one.notes)]
        for place, one in enumerate(own):
            found.append(((repeat_of(run) or id(run), place), (run, one)))
    if not found:
        raise EmptyRunError(
            notes[0].rstrip(".") if notes else "no runs to compare",
            hint="Sample a GPU with: gpuledger watch -- COMMAND",
        )
    notes = _merged(notes, len(runs))
    rows = []
    for group in gathered(found):
        row, note = _mean_of(group)
        rows.append(row)
        notes += [note] if note else []
    names = told_apart([row.figures.name for row in rows])
    first = rows[0].figures
    rows = [
        replace(row, figures=replace(row.figures, name=name), ratio_to_first=_ratio_to_first(row.figures, first))
        for row, name in zip(rows, names, strict=True)
    ]
    if any(row.repeats > 1 for row in rows):
        notes.append("Repeated runs are shown as their mean; ± is half the range.")
    return Comparison(tuple(rows), tuple(notes))


def _mean_of(group: Sequence[tuple[Run, Watched]]) -> tuple[ComparedRun, str]:
    """Return the mean of a command's runs, and a note if failed runs are left out."""
    run, first = group[0]
    shared = repeat_of(run)
    if len(group) == 1 or shared is None:
        return ComparedRun(first, {}), ""
    well = [one for _, one in group if not one.exit_status] or [one for _, one in group]
    means: dict[str, Any] = {}
    spread: dict[str, tuple[float, float]] = {}
    for name in FIGURES:
        values = [value for one in well if (value := getattr(one, name)) is not None]
        whole = len(values) == len(well)
        means[name] = sum(values) / len(values) if whole else None
        if whole:
            spread[name] = min(values), max(values)
    if means["peak_bytes"] is not None:
        means["peak_bytes"] = round(means["peak_bytes"])
    failed = next((one.exit_status for _, one in group if one.exit_status), first.exit_status)
    note = f"{shared[1]}: {len(group) - len(well)} of {len(group)} runs failed and are excluded from the mean."
    mean = replace(
        first,
        name=first.name.replace(run.name, shared[1], 1),
        samples=sum(one.samples for one in well),
        energy_uncertainty_j=None,
        exit_status=failed,
        **means,
    )
    return ComparedRun(mean, {}, len(well), spread), note if len(well) < len(group) else ""


def _ratio_to_first(one: Watched, first: Watched) -> dict[str, float | None]:
    return {name: share_frac(getattr(one, name), getattr(first, name)) for name in FIGURES}


def _merged(notes: list[str], runs: int) -> list[str]:
    """Return the notes; one that all runs have is listed once, without a name."""
    texts = [note.partition(": ")[2] for note in notes]
    shared = [text for text in dict.fromkeys(texts) if runs > 1 and texts.count(text) == runs]
    return [*shared, *(note for note, text in zip(notes, texts, strict=True) if text not in shared)]
