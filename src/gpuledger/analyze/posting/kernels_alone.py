"""Steps of the time pass in which kernels alone were recorded: each belongs to what its like in the first step does.

Operators are recorded in the first step only, since that takes the host longer than all the rest of the pass. A step
that repeats launches the same kernels in the same order, stream by stream; one that does not tells nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class KernelMatches:
    """For each device event that counts its row in ``rows``, the row it is like, and how many steps after that it ran.

    An event of the first step is like itself.
    """

    rows: I64
    like: I64
    steps_later: I64


def match_kernels(
    table: dict[str, NDArray[Any]], device: I64, has_launch: NDArray[np.bool_], alone_ns: int
) -> KernelMatches:
    """Return the likes of all device events; those of the steps without operators are left out where any has none.

    Args:
        table: The journal's activities.
        device: Rows of events of the device.
        has_launch: Which of these are known to have been launched by an operator or a range.
        alone_ns: When the recording of operators ended.
    """
    alone = ~has_launch & (table["start_ns"][device] >= alone_ns)
    first, later = device[~alone], device[alone]
    found = [(first, first, np.zeros(first.size, dtype=np.int64))]
    repeats = later.size // max(first.size, 1)
    for lane in sorted(set(_lanes(table, device))):
        of_first, of_later = (_in_order(table, rows, lane) for rows in (first, later))
        names = table["name_id"][of_first]
        if not np.array_equal(table["name_id"][of_later], np.tile(names, repeats)):
            return KernelMatches(*found[0])
        found.append((of_later, np.tile(of_first, repeats), 1 + np.repeat(np.arange(repeats), of_first.size)))
    rows, like, steps_later = (np.concatenate(column) for column in zip(*found, strict=True))
    return KernelMatches(rows, like, steps_later)


def _lanes(table: dict[str, NDArray[Any]], rows: I64) -> list[tuple[int, int]]:
    return list(zip(table["device_idx"][rows].tolist(), table["lane"][rows].tolist(), strict=True))


def _in_order(table: dict[str, NDArray[Any]], rows: I64, lane: tuple[int, int]) -> I64:
    """Return the rows of one stream in the order in which they ran."""
    mine: I64 = rows[(table["device_idx"][rows] == lane[0]) & (table["lane"][rows] == lane[1])]
    ordered: I64 = mine[np.argsort(table["start_ns"][mine], kind="stable")]
    return ordered
