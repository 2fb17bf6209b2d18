"""Align the allocations of a step with those of a recorded step of another batch.

Each size stays, or grows as the batch does, or becomes another one again and again. A size can do several of these: a
gradient of a weight stays, and an activation of that size grows. Allocations that only one of the steps has are passed
over. Where several alignments are as good as each other, an allocation has all the places that they give it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
_BEGINNING = 128
"""Number of allocations from which the ratios of sizes are found."""
_NEARBY = 32
"""Largest difference of positions of two allocations there."""
_TRIED, _RATIOS = 6, 3
"""Number of ratios that are tried, and that are used: as of the batch, of the length, and of its square."""
_TWICE = 2
"""Number of allocations that a ratio, or a change of a size, must explain."""
_ALIKE_FRAC = 0.1
"""Share of the allocations that steps of the same batch have beside the others."""
_ROUNDS = 4
"""Number of times that further changes are looked for."""
_BAND = 128
"""Largest difference of positions of an allocation in the two steps, if they have as many."""
_MOST_BAND, _CELLS = 1024, 10_000_000
"""The same if the step has more, and the largest number of a grid's elements."""
_MOST = 20_000
"""Number of allocations of a step from which on the others are not aligned: that takes some seconds."""
_FAR = 1 << 20


@dataclass(frozen=True)
class SizeChanges:
    """What a size of the reference can be in a step: itself, itself times a ratio, or what ``pairs`` say."""

    ratios: tuple[Fraction, ...] = ()
    pairs: frozenset[tuple[int, int]] = frozenset()

    def of(self, size: int) -> set[int]:
        """Return the sizes in bytes that a size of the reference can be."""
        other = {after for before, after in self.pairs if before == size}
        return {size, *_scaled(size, self.ratios), *other}

    def explain(self, sizes: Set[int], reference: Set[int]) -> dict[int, set[int]]:
        """Return each size of a step -> the sizes of the reference that it can come from.

        The other ratios and the pairs explain only what neither equality nor the first ratio does.
        """
        comes_from: dict[int, set[int]] = {size: set() for size in sizes}
        for before in reference:
            for after in {before, *_scaled(before, self.ratios[:1])} & sizes:
                comes_from[after].add(before)
        unexplained = {size for size, before in comes_from.items() if not before}
        for before in reference:
            for after in self.of(before) & unexplained:
                comes_from[after].add(before)
        return comes_from


def _scaled(size: int, ratios: Sequence[Fraction]) -> list[int]:
    return [int(size * ratio) for ratio in ratios if size * ratio.numerator % ratio.denominator == 0]


@dataclass(frozen=True)
class Alignment:
    """Where the allocations of a step are in the reference.

    ``path`` is one of the best alignments: a position for each allocation, -1 where it has none. ``places`` are the
    positions in all of the best ones, also -1.
    """

    path: list[int]
    places: list[list[int]]
    changes: SizeChanges


def align_steps(sizes: Sequence[int], reference: Sequence[int]) -> Alignment:
    """Return where the allocations of a step are in the reference. The step can be its beginning only.

    Args:
        sizes: Requested bytes of the step's allocations, in order.
        reference: Requested bytes of the allocations of the other step, in order.
    """
    if list(sizes) == list(reference[: len(sizes)]):
        return Alignment([*range(len(sizes))], [[place] for place in range(len(sizes))], SizeChanges())
    reference = reference[:_MOST]
    own = sizes[: len(reference) + _MOST_BAND]
    changes = SizeChanges(_ratios(own[:_BEGINNING], reference[:_BEGINNING]))
    grid = _Grid(own, reference, changes)
    for _ in range(_ROUNDS):
        pairs = changes.pairs | _repeated_changes(grid.path(), own, reference)
        if pairs == changes.pairs:
            break
        changes = SizeChanges(changes.ratios, pairs)
        grid = _Grid(own, reference, changes)
    left = len(sizes) - len(own)
    return Alignment(grid.path() + [-1] * left, grid.places() + [[-1]] * left, changes)


def _ratios(sizes: Sequence[int], reference: Sequence[int]) -> tuple[Fraction, ...]:
    """Return the ratios that explain most of the sizes, one after the other."""
    nearby = Counter[tuple[int, int]]()
    for at, size in enumerate(sizes):
        nearby.update((size, other) for other in reference[max(at - _NEARBY, 0) : at + _NEARBY])
    seen = Counter[Fraction]()
    for (size, other), times in nearby.items():
        if size and other and size != other:
            seen[Fraction(size, other)] += times
    tried = [ratio for ratio, _ in seen.most_common(_TRIED)]
    chosen: list[Fraction] = []
    least = _Grid(sizes, reference, SizeChanges()).least
    if least <= _ALIKE_FRAC * len(sizes):
        return ()
    while tried and len(chosen) < _RATIOS:
        costs = {ratio: _Grid(sizes, reference, SizeChanges((*chosen, ratio))).least for ratio in tried}
        best = min(tried, key=costs.__getitem__)
        if costs[best] > least - _TWICE:
            break
        least = costs[best]
        chosen.append(best)
        tried = [one for one in dict.fromkeys((*tried, chosen[0] ** 2)) if _is_beside(one, chosen[0])]
        tried = [one for one in tried if one not in chosen]
    return tuple(chosen)


def _is_beside(ratio: Fraction, first: Fraction) -> bool:
    """Return whether a ratio is possible beside the first: from a batch or a length alone up to a length's square."""
    return 1 < ratio <= first**2 if first > 1 else first**2 <= ratio < 1


def _repeated_changes(path: list[int], sizes: Sequence[int], reference: Sequence[int]) -> frozenset[tuple[int, int]]:
    """Return changes of sizes that come again where both steps have as many allocations between two of the path."""
    seen = Counter[tuple[int, int]]()
    last, at = -1, -1
    for number, place in enumerate(path):
        if place >= 0:
            if number - last == place - at:
                seen.update(zip(reference[at + 1 : place], sizes[last + 1 : number], strict=True))
            last, at = number, place
    return frozenset(pair for pair, times in seen.items() if times >= _TWICE)


class _Grid:
    """The costs of all alignments: one for each allocation of either step that is passed over.

    What follows in the reference after the last allocation costs nothing. A row is a number of allocations that are
    aligned, a column the difference of the positions in the two steps.
    """

    def __init__(self, sizes: Sequence[int], reference: Sequence[int], changes: SizeChanges) -> None:
        self._count = len(sizes)
        more = min(
            max(self._count - len(reference), 0), _MOST_BAND - _BAND, max(_CELLS // (self._count + 1) - _BAND, 0)
        )
        self._band = _BAND + more
        self._differences = np.arange(-self._band, self._band + 1)
        self._is_same = self._matches(sizes, reference, changes)
        rows = np.arange(self._count + 1)[:, None] + self._differences
        self._outside = (rows < 0) | (rows > len(reference))
        self._after = self._costs_after()
        self.least = int(self._after[0, self._band])

    def _matches(self, sizes: Sequence[int], reference: Sequence[int], changes: SizeChanges) -> NDArray[np.bool_]:
        """Return whether an allocation can be the one of the reference at each difference of positions."""
        kinds = {size: code for code, size in enumerate(dict.fromkeys(reference))}
        codes = np.full(self._count + len(reference) + 2 * self._band + 1, len(kinds))  # outside the reference: no kind
        codes[self._band : self._band + len(reference)] = [kinds[size] for size in reference]
        is_of = {size: np.zeros(len(kinds) + 1, dtype=bool) for size in sizes}
        for size, before in changes.explain(is_of.keys(), kinds.keys()).items():
            is_of[size][[kinds[one] for one in before]] = True
        width = self._differences.size
        rows = [is_of[size][codes[row : row + width]] for row, size in enumerate(sizes)]
        return np.array(rows, dtype=bool).reshape(self._count, width)

    def _costs_before(self) -> I32:
        costs = np.full(self._outside.shape, _FAR, dtype=np.int32)
        row = np.where(self._differences == 0, 0, _FAR)
        for number in range(self._count + 1):
            if number:
                above = costs[number - 1]
                row = np.where(self._is_same[number - 1], above, _FAR)
                row[:-1] = np.minimum(row[:-1], above[1:] + 1)
            row = np.minimum.accumulate(row - self._differences) + self._differences
            costs[number] = np.where(self._outside[number], _FAR, row)
        return costs

    def _costs_after(self) -> I32:
        costs = np.full(self._outside.shape, _FAR, dtype=np.int32)
        row = np.zeros(self._differences.size, dtype=np.int32)
        for number in range(self._count, -1, -1):
            if number < self._count:
                below = costs[number + 1]
                row = np.where(self._is_same[number], below, _FAR)
                row[1:] = np.minimum(row[1:], below[:-1] + 1)
            row = np.where(self._outside[number], _FAR, row)
            costs[number] = np.minimum.accumulate((row + self._differences)[::-1])[::-1] - self._differences
        return costs

    def path(self) -> list[int]:
        """Return the position in the reference of each allocation in one of the best alignments; -1 without one."""
        found: list[int] = []
        column = self._band
        while len(found) < self._count:
            row = len(found)
            cost, below = self._after[row, column], self._after[row + 1]
            if self._is_same[row, column] and below[column] == cost:
                found.append(row + column - self._band)
            elif column > 0 and below[column - 1] + 1 == cost:
                found.append(-1)
                column -= 1
            else:
                column += 1
        return found

    def places(self) -> list[list[int]]:
        """Return the positions of each allocation in all of the best alignments, also -1 for none."""
        before = self._costs_before()
        with_it = self._is_same & (before[:-1] + self._after[1:] == self.least)
        without = (before[:-1, 1:] + 1 + self._after[1:, :-1] == self.least).any(axis=1)
        return [
            [*[-1] * int(without[row]), *(np.flatnonzero(columns) + row - self._band).tolist()]
            for row, columns in enumerate(with_it)
        ]
