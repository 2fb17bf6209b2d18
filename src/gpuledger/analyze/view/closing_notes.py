"""Notes for the end of a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger.analyze.memory.empty import steps_not_reached
from gpuledger.model.energy_window import NOTES_WITHOUT_ENERGY

if TYPE_CHECKING:
    from gpuledger.analyze.view.view import RunView
    from gpuledger.model.run import Rank


def closing_notes(view: RunView) -> tuple[str, ...]:
    """Return the notes for the end of a recording, without those on parts that are left out by default.

    The note that no energy was measured stays. The step time says if a program has no steps: steps that were not
    reached are named only if other steps than the first were requested.
    """
    notes = list(view.run.manifest.notes)
    left_out = [note for rank in view.ranks for note in rank.manifest.left_out]
    notes += [note for note in left_out if note.startswith(NOTES_WITHOUT_ENERGY)]
    notes += [note for note in view.notes if note not in left_out]
    if view.devices:
        with_steps = [rank for rank in view.ranks if rank.manifest.steps_seen or not _asks_for_the_first(rank)]
        notes += [reason for rank in with_steps if (reason := steps_not_reached(rank))]
    else:
        notes += [note for rank in view.ranks for note in rank.manifest.notes]
    return tuple(dict.fromkeys(notes))


def _asks_for_the_first(rank: Rank) -> bool:
    return rank.manifest.window is not None and (rank.manifest.window.asked or ())[:1] == (1,)
