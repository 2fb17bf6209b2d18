"""Attribute kernels of profiled steps without operators, by matching them with the kernels of the first profiled step.

Operators are recorded only in the first profiled step, because they are the largest part of the overhead. A step that
repeats launches the same kernels in the same order on each stream, so its kernels get the owners of the first step's. A
step that does not match is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class KernelMatches:
    """For each device event in ``rows``: the row of the matching event, and the number of steps between the two.

    An event of the first step matches itself.
    """

    rows: I64
    like: I64
    steps_later: I64


def match_kernels(
    table: dict[str, NDArray[Any]], device: I64, has_launch: NDArray[np.bool_], alone_ns: int
) -> KernelMatches:
    """Return the matches of all device events.

    Steps without operators are left out if any of their events has no match.

    Args:
        table: The journal's activities.
        device: Rows of device events.
        has_launch: Which of these have a known launch by an operator or a range.
        alone_ns: Time at which the recording of operators ended, in Unix ns.
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
    """Return the rows of one stream in execution order."""
    mine: I64 = rows[(table["device_idx"][rows] == lane[0]) & (table["lane"][rows] == lane[1])]
    ordered: I64 = mine[np.argsort(table["start_ns"][mine], kind="stable")]
    return ordered
