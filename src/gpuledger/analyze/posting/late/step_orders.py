"""Find the allocations of one step in another one, by their order and sizes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from gpuledger.analyze.posting.late.step_alignment import SizeChanges, align_steps

_FEWEST_EQUAL_FRAC = 0.5
"""Share of a step's allocations that must be found in the other step."""
_MOST_COUNTED = 16
"""Number of allocations in a row that count as not found.

A compiler that tries its choices out allocates many more in one place.
"""
_FEWEST_OF_OTHER_FRAC = 0.75
"""Share of the other step's allocations up to there that must be found again, if sizes are of another batch."""
_FEWEST_KINDS = 2
"""Number of sizes that must be found again, as the same or as another one: one alone can be a coincidence."""
_CONFIRMED_FRAC = 0.25
"""Share of a step's allocations that must be as an earlier one says, or equal."""
_NEIGHBOURS, _FEWEST_NEIGHBOURS_FRAC = 6, 0.7
"""Number of allocations before and after one, and share of them that must be found one after the other in both steps.

Those of different code are found now and then, and not in a row.
"""


@dataclass(frozen=True)
class StepMatch:
    """The position in another step of each allocation; -1 where the orders do not match.

    ``is_sure`` is whether the sizes alone show that the steps are alike. ``next_places`` are the positions that can
    follow the step's last allocation. ``changes`` are what the other step's sizes can be here.
    """

    places: list[int]
    is_sure: bool = True
    next_places: list[int] = field(default_factory=list)
    changes: SizeChanges = field(default_factory=SizeChanges)


def match_step(
    sizes: Sequence[int], reference: Sequence[int], owners: Sequence[Hashable], *, is_whole: bool
) -> StepMatch:
    """Return where the allocations of a step are in another one.

    The sizes are those of the other step, or of another batch. Either step can have allocations that the other one does
    not have. Where several positions are possible, their owners must be equal.

    Args:
        sizes: Requested bytes of the step's allocations, in order.
        reference: Requested bytes of the other step's allocations, in order.
        owners: What is known of the other step's allocations.
        is_whole: Whether the step has ended. Otherwise ``sizes`` can be its beginning.
    """
    found = align_steps(sizes, reference)
    path = _in_a_row(found.path)
    pairs = [(reference[place], sizes[number]) for number, place in enumerate(path) if place >= 0]
    if len(pairs) < max(_FEWEST_EQUAL_FRAC * _counted(path), 1):
        return StepMatch([-1] * len(sizes))
    changed = any(before != after for before, after in pairs)
    of_other = len(reference) if is_whole else max(path) + 1
    if changed and len(pairs) < _FEWEST_OF_OTHER_FRAC * of_other:
        return StepMatch([-1] * len(sizes))
    kinds = {before for before, _ in pairs}
    confirmed = len(pairs) - len(found.changes.ratios) - len(found.changes.pairs)
    is_sure = not changed or (len(kinds) >= _FEWEST_KINDS and confirmed >= _CONFIRMED_FRAC * _counted(path))
    agreed = [_agreed(found.places[number], owners) if place >= 0 else -1 for number, place in enumerate(path)]
    follows = [] if path[-1] < 0 or -1 in found.places[-1] else [place + 1 for place in found.places[-1]]
    return StepMatch(agreed, is_sure, [place for place in follows if place < len(reference)], found.changes)


def _agreed(places: list[int], owners: Sequence[Hashable]) -> int:
    """Return the first of several positions; -1 if one is none, or if their owners differ."""
    return places[0] if places[0] >= 0 and len({owners[place] for place in places}) == 1 else -1


def _counted(path: list[int]) -> int:
    """Return the number of a step's allocations, without those beyond :data:`_MOST_COUNTED` in a row."""
    count = in_a_row = 0
    for place in path:
        in_a_row = in_a_row + 1 if place < 0 else 0
        count += in_a_row <= _MOST_COUNTED
    return count


def _in_a_row(path: list[int]) -> list[int]:
    """Return a path without the allocations of which most neighbours are not found one after the other."""
    runs: list[int] = []
    """The numbers of the allocations that are found, with -1 where one of the steps has others between them."""
    last = (-1, -1)
    for number, place in enumerate(path):
        if place >= 0:
            if (number - 1, place - 1) != last:
                runs.append(-1)
            runs.append(number)
            last = (number, place)
    kept = [-1] * len(path)
    for at, number in enumerate(runs):
        nearby = runs[max(at - _NEIGHBOURS, 0) : at + _NEIGHBOURS + 1]
        if number >= 0 and sum(one >= 0 for one in nearby) >= _FEWEST_NEIGHBOURS_FRAC * len(nearby):
            kept[number] = path[number]
    return kept
