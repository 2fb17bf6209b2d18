"""Find the allocations of one step in another one, by their order and sizes."""

from __future__ import annotations

from collections import Counter

_AHEAD = 32
"""Number of allocations of the other step that are searched for the next one of equal size."""
_FEWEST_EQUAL_FRAC = 0.5
"""Share of a step's allocations that must have an equal one in the other step."""
_SCALED_FRAC = 0.95
"""Share of a step's allocations that must have the size of another batch."""
_FEWEST_SIZES = 2
"""Number of sizes that must each be found again as another one, or as the same: one alone can be a coincidence."""
_FEWEST_PAIRS = 4


def match_step(sizes: list[int], reference: list[int], *, is_whole: bool) -> list[int]:
    """Return the position in ``reference`` of each allocation of a step; -1 where the orders do not match.

    The sizes are those of the reference, with a few allocations more or fewer. Or they are those of another batch: then
    each size of the reference stays, or becomes one other size.

    Args:
        sizes: Requested bytes of the step's allocations, in order.
        reference: Requested bytes of another step's allocations, in order.
        is_whole: Whether the step has ended. Otherwise ``sizes`` can be its beginning.
    """
    if _is_of_another_batch(sizes, reference, is_whole=is_whole):
        return list(range(len(sizes)))
    aligned = _aligned(sizes, reference)
    if sum(one >= 0 for one in aligned) < _FEWEST_EQUAL_FRAC * len(aligned):
        return [-1] * len(sizes)
    return aligned


def _is_of_another_batch(sizes: list[int], reference: list[int], *, is_whole: bool) -> bool:
    if len(sizes) < _FEWEST_PAIRS or len(sizes) > len(reference) or (is_whole and len(sizes) != len(reference)):
        return False
    pairs = Counter(zip(reference, sizes, strict=False))
    changed = [pair for pair, _ in pairs.most_common() if pair[0] != pair[1]]
    becomes: dict[int, int] = {}
    comes_from: dict[int, int] = {}
    for before, after in changed:  # the most frequent pair of each size
        if before not in becomes and after not in comes_from:
            becomes[before], comes_from[after] = after, before
    kept = [pair for pair in pairs if pair[0] == pair[1] or becomes.get(pair[0]) == pair[1]]
    return len(kept) >= _FEWEST_SIZES and sum(pairs[pair] for pair in kept) >= _SCALED_FRAC * len(sizes)


def _aligned(sizes: list[int], reference: list[int]) -> list[int]:
    """Return the position in ``reference`` of each size, in ascending order; -1 without one nearby."""
    aligned = []
    at = 0
    for size in sizes:
        ahead = next((one for one in range(at, min(at + _AHEAD, len(reference))) if reference[one] == size), -1)
        aligned.append(ahead)
        at = ahead + 1 if ahead >= 0 else at
    return aligned
