"""Notes for the end of a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger.analyze.memory.empty import STILL_WRITTEN, steps_not_reached
from gpuledger.model.energy_window import NOTES_WITHOUT_ENERGY

if TYPE_CHECKING:
    from gpuledger.analyze.view.view import RunView
    from gpuledger.model.run import Rank


def closing_notes(view: RunView) -> tuple[str, ...]:
    """Return the notes for the end of a recording.

    On a CPU, those on parts that are left out by default are not among them, except that no energy was measured if
    anything was recorded. On a GPU, they are: they say with which option a part is measured. The step time says if a
    program has no steps: steps that were not reached are named only if other steps than the first were requested.
    """
    left_out = [(rank.number, note) for rank in view.ranks for note in rank.manifest.left_out]
    asked = [(rank.number, note) for rank in view.ranks for note in rank.manifest.notes]
    of_energy = (*(left_out if view.devices else ()), *asked)
    notes = [(rank, note) for rank, note in of_energy if note.startswith(NOTES_WITHOUT_ENERGY)]
    on_gpu = any(one.device_idx >= 0 for one in view.devices)
    not_shown = set() if on_gpu else {note for _, note in left_out}
    notes += [(rank, note) for rank, note in view.rank_notes if note not in not_shown]
    if view.devices:
        with_steps = [rank for rank in view.ranks if rank.manifest.steps_seen or not _asks_for_the_first(rank)]
        reasons = [(rank.number, reason) for rank in with_steps if (reason := steps_not_reached(rank))]
        notes += [(number, f"{reason[0].upper()}{reason[1:]}.") for number, reason in reasons]
    else:
        notes += asked
    of_run = (*view.run.manifest.notes, *([STILL_WRITTEN] if view.run.manifest.status == "running" else []))
    of_ranks = ((rank, note) for rank, note in notes if note not in of_run)
    return (*dict.fromkeys(of_run), *view.label_notes(of_ranks))


def _asks_for_the_first(rank: Rank) -> bool:
    return rank.manifest.window is not None and (rank.manifest.window.asked or ())[:1] == (1,)
