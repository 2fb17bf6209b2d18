"""How the bytes of categories and modules are spread over the ranks.

With a thousand ranks and thousands of modules, the sums are millions of numbers. They are sorted as one array, which
takes a fraction of the time of sorting a list for each module in the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import duckdb

MOST_CELLS = 16_000_000
"""Names times ranks that are in memory at once."""


@dataclass(frozen=True)
class RankSpread:
    """How the bytes of one category or module at the ranks' peaks are spread over the ranks.

    ``expected_bytes`` is the median of what the device mesh says that a rank has to hold; None if it says nothing.
    """

    name: str
    ranks: int
    min_bytes: int
    median_bytes: int
    max_bytes: int
    max_rank: int
    expected_bytes: int | None = None


class RankSums:
    """The bytes of each category and module on each rank.

    Args:
        connection: Has the tables ``places``, ``keys`` and ``sums`` of :func:`.reading.open_summaries`.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.ranks: list[int] = [
            rank for (rank,) in connection.execute("SELECT DISTINCT rank FROM places ORDER BY rank").fetchall()
        ]
        keys = connection.execute("SELECT category, module, category_no, module_no FROM keys ORDER BY key")
        self._keys: dict[str, Any] = keys.fetchnumpy()
        sums = connection.execute("SELECT rank, key, bytes FROM sums").fetchnumpy()
        self._key, self._place, self._bytes = self._located(sums, "bytes")
        known = connection.execute("SELECT rank, key, expected_bytes FROM sums WHERE expected_bytes IS NOT NULL")
        self._expected = self._located(known.fetchnumpy(), "expected_bytes")

    def _located(self, rows: dict[str, Any], name: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the index of the key, the index of the rank, and the bytes of each row."""
        places = np.searchsorted(np.array(self.ranks), rows["rank"]).astype(np.int32)
        return rows["key"] - 1, places, np.asarray(rows[name])

    def spreads(
        self, group_by: str, most: int | None = None
    ) -> tuple[tuple[RankSpread, ...], tuple[tuple[int, ...], ...]]:
        """Return the spread of each category, largest first, or of the ``most`` modules with the widest spread.

        Args:
            group_by: ``category`` or ``module``.
            most: Maximum number; None returns all, with the bytes of each on every rank.
        """
        numbers = self._keys[f"{group_by}_no"].astype(np.int64) - 1
        names = np.empty(int(numbers.max(initial=-1)) + 1, dtype=object)
        names[numbers] = self._keys[group_by]
        found: list[tuple[RankSpread, NDArray[Any]]] = []
        count = max(1, MOST_CELLS // max(1, len(self.ranks)))
        for first in range(0, len(names), count):
            found += self._of_names(numbers, names[first : first + count], first)
            found.sort(key=lambda one: (_rank_of(one[0], widest=most is not None), one[0].name))
            found = found[:most]
        rows = () if most is not None else tuple(tuple(row.tolist()) for _, row in found)
        return tuple(spread for spread, _ in found), rows

    def _of_names(
        self, numbers: NDArray[Any], names: NDArray[Any], first: int
    ) -> list[tuple[RankSpread, NDArray[np.int64]]]:
        """Return the spreads of some names, with the bytes on every rank; without those that no rank has."""
        shape = (len(names), len(self.ranks))
        sizes, have = _dense(numbers[self._key] - first, self._place, self._bytes, shape)
        expected, says = _dense(numbers[self._expected[0]] - first, *self._expected[1:], shape)
        ordered = np.sort(sizes, axis=1)
        middle = (ordered[:, (shape[1] - 1) // 2] + ordered[:, shape[1] // 2]) // 2
        found = []
        for row in np.flatnonzero(ordered[:, -1] > 0).tolist():
            told = np.sort(expected[row][says[row]])
            spread = RankSpread(
                str(names[row]),
                int(have[row].sum()),
                int(ordered[row, 0]),
                int(middle[row]),
                int(ordered[row, -1]),
                self.ranks[int(sizes[row].argmax())],
                _middle(told) if told.size else None,
            )
            found.append((spread, sizes[row]))
        return found


def _middle(ordered: NDArray[np.int64]) -> int:
    return int(ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]) // 2


def _dense(
    rows: NDArray[Any], columns: NDArray[Any], size_bytes: NDArray[Any], shape: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the sum of bytes in each cell, and whether it has any."""
    inside = (rows >= 0) & (rows < shape[0])
    cells = rows[inside] * shape[1] + columns[inside]
    count = shape[0] * shape[1]
    sums = np.bincount(cells, weights=size_bytes[inside], minlength=count).astype(np.int64)
    has = np.zeros(count, dtype=bool)
    has[cells] = True
    return sums.reshape(shape), has.reshape(shape)


def _rank_of(spread: RankSpread, *, widest: bool) -> int:
    return spread.min_bytes - spread.max_bytes if widest else -spread.max_bytes
