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

from gpuledger.model.journal.reading import Journal

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class KernelMatches:
    """For each device event in ``rows``: the row of the matching event, and the number of steps between the two.

    An event of the first step matches itself.
    """

    rows: I64
    like: I64
    steps_later: I64


def with_later_steps(journal: Journal, table: dict[str, NDArray[Any]], chosen: I64, launch: I64) -> KernelMatches:
    """Return the measured activities, and for steps without operators the equivalent ones of the first step.

    Args:
        journal: The journal.
        table: Its activities.
        chosen: Rows of measured activities.
        launch: Row of the host event that launched each; -1 if unknown.
    """
    alone = journal.facts.get("kernels_alone")
    if alone is None:
        return KernelMatches(chosen, chosen, np.zeros(chosen.size, dtype=np.int64))
    launched_ns = np.where(launch >= 0, table["start_ns"][launch], -1)
    return match_kernels(table, chosen, launched_ns, int(alone["from_ns"]))


def match_kernels(table: dict[str, NDArray[Any]], device: I64, launched_ns: I64, alone_ns: int) -> KernelMatches:
    """Return the matches of all device events.

    Steps without operators are left out if any of their events has no match. Other threads can still record operators
    in these steps. On a stream with such events only, these match themselves.

    Args:
        table: The journal's activities.
        device: Rows of device events.
        launched_ns: Start of the launch of each by an operator or a range, in Unix ns; -1 if unknown.
        alone_ns: Time at which the recording of operators ended, in Unix ns.
    """
    is_later = np.where(launched_ns >= 0, launched_ns, table["start_ns"][device]) >= alone_ns
    lanes = _lanes(table, device)
    known = set(_lanes(table, device[is_later])) - set(_lanes(table, device[is_later & (launched_ns < 0)]))
    is_known = np.array([lane in known for lane in lanes], dtype=bool)
    first, own = device[~is_later], device[is_later & is_known]
    alike, later = device[~is_later & ~is_known], device[is_later & ~is_known]
    found = [(first, first, np.zeros(first.size, dtype=np.int64))]
    if not later.size:
        return KernelMatches(*found[0])
    repeats = later.size // max(alike.size, 1)
    for lane in sorted(set(lanes) - known):
        of_first, of_later = (_in_order(table, rows, lane) for rows in (alike, later))
        names = table["name_id"][of_first]
        if not np.array_equal(table["name_id"][of_later], np.tile(names, repeats)):
            return KernelMatches(*found[0])
        found.append((of_later, np.tile(of_first, repeats), 1 + np.repeat(np.arange(repeats), of_first.size)))
    found.append((own, own, np.zeros(own.size, dtype=np.int64)))
    rows, like, steps_later = (np.concatenate(column) for column in zip(*found, strict=True))
    return KernelMatches(rows, like, steps_later)


def _lanes(table: dict[str, NDArray[Any]], rows: I64) -> list[tuple[int, int]]:
    return list(zip(table["device_idx"][rows].tolist(), table["lane"][rows].tolist(), strict=True))


def _in_order(table: dict[str, NDArray[Any]], rows: I64, lane: tuple[int, int]) -> I64:
    """Return the rows of one stream in execution order."""
    mine: I64 = rows[(table["device_idx"][rows] == lane[0]) & (table["lane"][rows] == lane[1])]
    ordered: I64 = mine[np.argsort(table["start_ns"][mine], kind="stable")]
    return ordered
