"""Find the allocations of one step in another one, by their order and sizes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_AHEAD = 32
"""Number of allocations of the other step that are searched for the next one of equal size."""
_FEWEST_EQUAL_FRAC = 0.5
"""Share of a step's allocations that must have an equal one in the other step."""
_FEWEST_SCALED_FRAC = 0.75
"""Share of a step's allocations that must have an equal one, or one of another batch."""
_FEWEST_KINDS = 2
"""Number of sizes that must be found again, as the same or as another one: one alone can be a coincidence."""
_CONFIRMED_FRAC = 0.25
"""Share of a step's allocations that must be as an earlier one says, or equal."""


@dataclass(frozen=True)
class StepMatch:
    """The position in another step of each allocation; -1 where the orders do not match.

    ``is_sure`` is whether the sizes alone show that the steps are alike. ``becomes`` are the sizes of the other step
    that are other ones here.
    """

    places: list[int]
    is_sure: bool = True
    becomes: dict[int, int] = field(default_factory=dict)


def match_step(sizes: list[int], reference: list[int], *, is_whole: bool) -> StepMatch:
    """Return where the allocations of a step are in another one.

    The sizes are those of the other step, with a few allocations more or fewer. Or they are those of another batch:
    then each size of the other step stays, or becomes one other size.

    Args:
        sizes: Requested bytes of the step's allocations, in order.
        reference: Requested bytes of the other step's allocations, in order.
        is_whole: Whether the step has ended. Otherwise ``sizes`` can be its beginning.
    """
    places = _aligned(sizes, reference)
    found = StepMatch(places if _matched_frac(places) >= _FEWEST_EQUAL_FRAC else [-1] * len(sizes))
    if is_whole and len(sizes) != len(reference):
        return found
    other, own, becomes = _changes(sizes, reference)
    scaled = _aligned(sizes[own:], [becomes.get(size, size) for size in reference[other:]])
    scaled = [*[-1] * own, *(place + other if place >= 0 else -1 for place in scaled)]
    if not becomes or _matched_frac(scaled) < max(_FEWEST_SCALED_FRAC, _matched_frac(found.places)):
        return found
    kinds = {reference[place] for place in scaled if place >= 0}
    confirmed = sum(place >= 0 for place in scaled) - len(kinds & becomes.keys())
    is_sure = len(kinds) >= _FEWEST_KINDS and confirmed >= _CONFIRMED_FRAC * len(sizes)
    return StepMatch(scaled, is_sure, becomes)


def _matched_frac(places: list[int]) -> float:
    return sum(one >= 0 for one in places) / len(places) if places else 0.0


def _changes(sizes: list[int], reference: list[int]) -> tuple[int, int, dict[int, int]]:
    """Return what sizes of ``reference`` become, from where the orders begin to match up to where they differ.

    Either step can begin with a few allocations that the other one does not have, such as the last ones of an update.
    Their numbers, in ``reference`` and in ``sizes``, are returned first.
    """
    starts = [(0, 0), *((skipped, 0) for skipped in range(1, _AHEAD)), *((0, skipped) for skipped in range(1, _AHEAD))]
    found = [(*start, *_changes_from(sizes[start[1] :], reference[start[0] :])) for start in starts]
    other, own, _, becomes = max(found, key=lambda one: one[2])
    return other, own, becomes


def _changes_from(sizes: list[int], reference: list[int]) -> tuple[int, dict[int, int]]:
    """Return how many allocations match from the beginning, and what sizes of ``reference`` become in them."""
    becomes: dict[int, int] = {}
    comes_from: dict[int, int] = {}
    seen = Counter[int]()
    matched = 0
    for before, after in zip(reference, sizes, strict=False):
        if before != after:
            if becomes.setdefault(before, after) != after or comes_from.setdefault(after, before) != before:
                # the last sizes before this can belong to an allocation that only one of the steps has
                return matched, {one: other for one, other in becomes.items() if seen[one] > 1}
            seen[before] += 1
        matched += 1
    return matched, becomes


def _aligned(sizes: list[int], reference: list[int]) -> list[int]:
    """Return the position in ``reference`` of each size, in ascending order; -1 without one nearby."""
    aligned = []
    at = 0
    for size in sizes:
        ahead = next((one for one in range(at, min(at + _AHEAD, len(reference))) if reference[one] == size), -1)
        aligned.append(ahead)
        at = ahead + 1 if ahead >= 0 else at
    return aligned
