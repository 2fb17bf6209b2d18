"""Time of each rank: computing, communicating and waiting for other ranks.

A collective starts on each rank when the rank reaches it, and runs until all ranks have arrived. So its time on a rank
has two parts: the wait for the rank that comes last, and the communication itself. The clocks of the ranks are aligned
by the ends of the collectives, which are almost simultaneous.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.live import to_numbers
from gpuledger.analyze.step.work import names_of, union_ns

if TYPE_CHECKING:
    from gpuledger.analyze.ranks.reading import RankLine
    from gpuledger.model.run import Rank

I64 = NDArray[np.int64]

MOST_RANKS = 128
"""Maximum number of ranks whose spans are read."""
_COMPUTE, _COLLECTIVE = ("kernel", "copy"), "collective"


@dataclass(frozen=True)
class RankTime:
    """Times of one rank in ns, per profiled step. They do not overlap.

    ``exposed_communication_ns`` is communication during which nothing was computed, ``waiting_ns`` the same before the
    last rank had arrived. ``overlapped_communication_ns`` ran beside computation. ``came_last_frac`` is the share of
    collectives to which this rank came last, ``caused_wait_ns`` the mean wait of the other ranks for it.
    """

    rank: int
    compute_ns: float
    overlapped_communication_ns: float
    exposed_communication_ns: float
    waiting_ns: float
    came_last_frac: float
    caused_wait_ns: float


@dataclass(frozen=True)
class Waits:
    """Times of the ranks on aligned clocks.

    ``uncertainty_ns`` is the median difference between the ends of a collective on two ranks after the alignment. A
    shorter wait means nothing.

    Source: Kineto (CUPTI), matched by the name and the order of the collectives.
    """

    ranks: tuple[RankTime, ...]
    collectives: int
    uncertainty_ns: float

    @property
    def straggler(self) -> RankTime | None:
        """Return the rank that the others wait for; None if the waits are within the uncertainty."""
        worst = max(self.ranks, key=lambda one: one.caused_wait_ns)
        is_usual = worst.came_last_frac > 1.5 / len(self.ranks)
        return worst if is_usual and worst.caused_wait_ns > self.uncertainty_ns else None


@dataclass(frozen=True)
class _Spans:
    """Spans of one rank, ordered by start. ``keys`` are name and position among the collectives of that name."""

    keys: tuple[tuple[str, int], ...]
    start: I64
    end: I64
    compute_start: I64
    compute_end: I64
    steps: int


def find_waits(ranks: Sequence[Rank], lines: Sequence[RankLine]) -> Waits | None:
    """Return the times of the ranks; None without collectives in profiled steps.

    Ranks are matched only if all of them take part in each collective: the device mesh has one dimension, or there is
    none.
    """
    shapes = [rank.manifest.mesh.shape for rank in ranks if rank.manifest.mesh is not None]
    if any(math.prod(shape) != max(shape, default=1) for shape in shapes) or len(ranks) > MOST_RANKS:
        return None
    device = {line.rank: line.device_idx for line in lines}
    spans: dict[int, _Spans] = {}
    for rank in ranks:
        if rank.number in device:
            spans[rank.number] = _read(rank, device[rank.number])
            if not spans[rank.number].keys:
                return None
    if len(spans) < 2:
        return None
    common = set.intersection(*(set(one.keys) for one in spans.values()))
    keys = [key for key in next(iter(spans.values())).keys if key in common]
    return _align(spans, keys) if keys else None


def _read(rank: Rank, device_idx: int) -> _Spans:
    table = rank.table("spans", ("device_idx", "kind", "name_id", "start_ns", "end_ns", "step"))
    kinds = np.array(table["kind"].to_pylist(), dtype=object)
    device, name_id, start, end, step = (
        to_numbers(table[name], -1) for name in ("device_idx", "name_id", "start_ns", "end_ns", "step")
    )
    rank.forget_columns()
    mine = device == device_idx
    compute, collective = mine & np.isin(kinds, _COMPUTE), np.flatnonzero(mine & (kinds == _COLLECTIVE))
    collective = collective[np.argsort(start[collective], kind="stable")]
    names, seen = names_of(rank), Counter[str]()
    keys = []
    for one in name_id[collective].tolist():
        name = names.get(one, "")
        keys.append((name, seen[name]))
        seen[name] += 1
    steps = int(np.unique(step[collective]).size)
    return _Spans(tuple(keys), start[collective], end[collective], start[compute], end[compute], steps)


def _align(spans: dict[int, _Spans], keys: list[tuple[str, int]]) -> Waits:
    """Return the times of the ranks after their clocks were aligned."""
    places = {rank: [one.keys.index(key) for key in keys] for rank, one in spans.items()}
    end = np.array([spans[rank].end[places[rank]] for rank in spans])
    start = np.array([spans[rank].start[places[rank]] for rank in spans])
    offset = np.median(end - end[0], axis=1, keepdims=True).astype(np.int64)
    end, start = end - offset, start - offset
    uncertainty_ns = float(np.median(end.max(axis=0) - end.min(axis=0)))
    last = start.argmax(axis=0)
    wait = np.clip(start.max(axis=0) - start, 0, end - start)
    times = []
    for row, (rank, one) in enumerate(spans.items()):
        compute = _union_ns(one.compute_start, one.compute_end)
        starts, ends = one.start[places[rank]], one.end[places[rank]]
        exposed = _beyond(starts, ends, one)
        waiting = _beyond(starts, starts + wait[row], one)
        mine = last == row
        others = np.delete(wait, row, axis=0)
        times.append(
            RankTime(
                rank=rank,
                compute_ns=compute / one.steps,
                overlapped_communication_ns=(_union_ns(starts, ends) - exposed) / one.steps,
                exposed_communication_ns=(exposed - waiting) / one.steps,
                waiting_ns=waiting / one.steps,
                came_last_frac=float(mine.mean()),
                caused_wait_ns=float(others[:, mine].mean(axis=0).sum()) / one.steps if mine.any() else 0.0,
            )
        )
    return Waits(tuple(times), len(keys), uncertainty_ns)


def _beyond(start: I64, end: I64, one: _Spans) -> int:
    """Return how long some spans ran while nothing was computed."""
    both = _union_ns(np.concatenate([start, one.compute_start]), np.concatenate([end, one.compute_end]))
    return both - _union_ns(one.compute_start, one.compute_end)


def _union_ns(start: I64, end: I64) -> int:
    return union_ns(start, end) if start.size else 0
