"""Several runs beside each other, each figure against the first run's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuledger.analyze.series import told_apart
from gpuledger.analyze.watched import Watched, watched
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
    "energy_j": "J",
    "mean_power_w": "W",
    "peak_power_w": "W",
    "throttled_s": "s",
}
"""What is compared, in the order in which it is shown, and its unit."""


@dataclass(frozen=True)
class Compared:
    """One card of one run: its figures, and each as a multiple of the first one's; None where one is missing."""

    figures: Watched
    times_first: dict[str, float | None]

    def value(self, name: str) -> float | None:
        """Return a figure of :data:`FIGURES`."""
        value: float | None = getattr(self.figures, name)
        return value


@dataclass(frozen=True)
class Comparison:
    """Cards of runs in the order they were given; the first is what the others are held against."""

    rows: tuple[Compared, ...]
    notes: tuple[str, ...]


def compare(runs: Sequence[Run]) -> Comparison:
    """Return the figures of every card of every run, each against the first.

    Raises:
        EmptyRunError: no run holds bytes over time.
    """
    figures: list[Watched] = []
    notes: list[str] = []
    for run in runs:
        own = watched(run)
        if not own:
            notes.append(f"{run.name}: no bytes over time in it.")
        notes += [f"{run.name}: {note}" for note in dict.fromkeys(note for one in own for note in one.notes)]
        figures += own
    if not figures:
        raise EmptyRunError(
            notes[0].rstrip(".") if notes else "no run", hint="gpuledger watch -- COMMAND reads the card"
        )
    names = told_apart([one.name for one in figures])
    figures = [replace(one, name=name) for one, name in zip(figures, names, strict=True)]
    rows = tuple(Compared(one, _times_first(one, figures[0])) for one in figures)
    return Comparison(rows, tuple(_merged(notes, len(runs))))


def _times_first(one: Watched, first: Watched) -> dict[str, float | None]:
    return {name: share_frac(getattr(one, name), getattr(first, name)) for name in FIGURES}


def _merged(notes: list[str], runs: int) -> list[str]:
    """Return the notes, one that every run has once and without a name."""
    texts = [note.partition(": ")[2] for note in notes]
    shared = [text for text in dict.fromkeys(texts) if runs > 1 and texts.count(text) == runs]
    return [*shared, *(note for note, text in zip(notes, texts, strict=True) if text not in shared)]
