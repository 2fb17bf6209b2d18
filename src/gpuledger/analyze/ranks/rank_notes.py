"""Notes of several ranks: each once, with the ranks that have it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpuledger.units import name_ranks


def label_notes(notes: Iterable[tuple[int, str]], ranks: Collection[int]) -> tuple[str, ...]:
    """Return each note once, after the ranks that have it: ``Rank 1: …``, or ``All ranks: …``.

    Args:
        notes: Rank and note.
        ranks: The ranks of which notes could be. If there is only one, no note names it.
    """
    found: dict[str, set[int]] = {}
    for rank, note in notes:
        found.setdefault(note, set()).add(rank)
    if len(set(ranks)) < 2:
        return tuple(found)
    return tuple(f"{_named(have, ranks)}: {note}" for note, have in found.items())


def _named(have: Collection[int], ranks: Collection[int]) -> str:
    return "All ranks" if set(have) == set(ranks) else name_ranks(sorted(have)).capitalize()
