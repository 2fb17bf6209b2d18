"""Time of each rank: computing, communicating and waiting for other ranks.

A collective starts on each rank when the rank reaches it, and runs until all ranks have arrived. So its time on a rank
has two parts: the wait for the rank that comes last, and the communication itself. The clocks of the ranks are aligned
by the ends of the collectives, which are almost simultaneous.

A wait beside which the rank computes costs nothing, so it counts as overlapped communication. All times are medians
over the profiled steps before which the recorder did not pause the program. Its pauses do not take equally long on all
ranks, so the ranks wait for each other after them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.step.work import COLLECTIVE, names_of, union_ns
from gpuledger.model.arrow_numbers import to_numbers

if TYPE_CHECKING:
    from gpuledger.analyze.ranks.reading import RankLine
    from gpuledger.model.run import Rank

I64 = NDArray[np.int64]

MOST_RANKS = 128
"""Maximum number of ranks whose spans are read."""
LEAST_CAUSED_FRAC, LEAST_OF_EQUAL, LEAST_STEP_FRAC = 0.5, 1.5, 0.01
"""A straggler causes more than this share of the waiting, this multiple of an equal share, and this share of a step."""
ALIGNED_NS = 100_000
"""Difference of the ranks' clocks that remains after the alignment, at most."""
LEAST_JOINT_FRAC = 0.5
"""The ranks are compared if they take part together in more than this share of the collectives."""
_COMPUTE = ("kernel", "copy")


@dataclass(frozen=True)
class RankTime:
    """Times of one rank in ns: medians over profiled steps. They do not overlap.

    ``exposed_communication_ns`` is communication during which nothing was computed, ``waiting_ns`` the same before the
    last rank had arrived. ``overlapped_communication_ns`` ran beside computation. ``came_last_frac`` is the share of
    collectives to which this rank came last. ``caused_wait_ns`` is the mean ``waiting_ns`` of the other ranks for it,
    and ``caused_wait_frac`` its share of what all ranks cause.
    """

    rank: int
    compute_ns: float
    overlapped_communication_ns: float
    exposed_communication_ns: float
    waiting_ns: float
    came_last_frac: float
    caused_wait_ns: float
    caused_wait_frac: float

    @property
    def busy_ns(self) -> float:
        """Return the time in which the rank computed, communicated or waited."""
        return self.compute_ns + self.exposed_communication_ns + self.waiting_ns


@dataclass(frozen=True)
class Waits:
    """Times of the ranks on aligned clocks.

    ``steps`` are the profiled steps that they are medians of; of an even number, the lower of the two in the middle.
    ``uncertainty_ns`` is the median difference between the ends of a collective on two ranks after the alignment. A
    shorter wait means nothing.

    Source: Kineto (CUPTI), matched by the name and the order of the collectives.
    """

    ranks: tuple[RankTime, ...]
    steps: tuple[int, ...]
    collectives: int
    uncertainty_ns: float

    @property
    def straggler(self) -> RankTime | None:
        """Return the rank that the others wait for; None if no rank causes much more of the waiting than the others.

        A rank that is late at the beginning of each step comes last to one collective of a step only. So what counts
        is how long the others wait for it, and not how often.
        """
        worst = max(self.ranks, key=lambda one: one.caused_wait_ns)
        least_ns = max(self.uncertainty_ns, LEAST_STEP_FRAC * worst.busy_ns)
        least_frac = max(LEAST_CAUSED_FRAC, LEAST_OF_EQUAL / len(self.ranks))
        return worst if worst.caused_wait_ns > least_ns and worst.caused_wait_frac > least_frac else None


@dataclass(frozen=True)
class _Spans:
    """Spans of one rank. ``keys`` are name and position among the collectives of that name, ordered by start.

    ``pauses`` are the times at which the recorder paused the program.
    """

    keys: tuple[tuple[str, int], ...]
    start: I64
    end: I64
    step: I64
    compute_start: I64
    compute_end: I64
    compute_step: I64
    pauses: I64


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
    spans = {rank: _only(one, keys) for rank, one in spans.items()}
    joint = _joint(spans) if keys else []
    if len(joint) <= LEAST_JOINT_FRAC * len(keys):
        return None
    return _align({rank: _only(one, joint) for rank, one in spans.items()})


def _read(rank: Rank, device_idx: int) -> _Spans:
    table = rank.table("spans", ("device_idx", "kind", "name_id", "start_ns", "end_ns", "step"))
    kinds = np.array(table["kind"].to_pylist(), dtype=object)
    device, name_id, start, end, step = (
        to_numbers(table[name], -1) for name in ("device_idx", "name_id", "start_ns", "end_ns", "step")
    )
    rank.forget_columns()
    mine = device == device_idx
    compute, collective = mine & np.isin(kinds, _COMPUTE), np.flatnonzero(mine & (kinds == COLLECTIVE))
    collective = collective[np.argsort(start[collective], kind="stable")]
    names, seen = names_of(rank), Counter[str]()
    keys = []
    for one in name_id[collective].tolist():
        name = names.get(one, "")
        keys.append((name, seen[name]))
        seen[name] += 1
    columns = [one[chosen] for chosen in (collective, compute) for one in (start, end, step)]
    columns.append(np.array([pause.start_ns for pause in rank.manifest.pauses], dtype=np.int64))
    return _Spans(tuple(keys), *columns)


def _only(one: _Spans, keys: list[tuple[str, int]]) -> _Spans:
    """Return the spans of a rank with some of its collectives, in their order."""
    places = {key: place for place, key in enumerate(one.keys)}
    chosen = np.array([places[key] for key in keys])
    return replace(one, keys=tuple(keys), start=one.start[chosen], end=one.end[chosen], step=one.step[chosen])


def _joint(spans: dict[int, _Spans]) -> list[tuple[str, int]]:
    """Return the collectives that no rank ended before the last one had reached it.

    The others are several collectives of the same name: those of process groups with some of the ranks each, which a
    program can create without a device mesh.
    """
    start, end = _aligned(spans)
    is_joint = start.max(axis=0) <= end.min(axis=0) + ALIGNED_NS
    return [key for key, joint in zip(next(iter(spans.values())).keys, is_joint.tolist(), strict=True) if joint]


def _aligned(spans: dict[int, _Spans]) -> tuple[I64, I64]:
    """Return starts and ends of the collectives by rank, on the first rank's clock."""
    start, end = (np.array([getattr(one, name) for one in spans.values()]) for name in ("start", "end"))
    offset = np.median(end - end[0], axis=1, keepdims=True).astype(np.int64)
    return start - offset, end - offset


def _align(spans: dict[int, _Spans]) -> Waits:
    """Return the times of ranks with the same collectives, after their clocks were aligned."""
    start, end = _aligned(spans)
    last = start.argmax(axis=0)
    wait = np.clip(start.max(axis=0) - start, 0, end - start)
    waiting = np.array([_alone(one.start, one.start + ns, one) for one, ns in zip(spans.values(), wait, strict=True)])
    steps, step = np.unique(next(iter(spans.values())).step, return_inverse=True)
    usual = _without_pauses(spans, step)

    def per_step(values: NDArray[Any]) -> float:
        return _median(np.bincount(step, values, steps.size)[usual])

    others = waiting.sum(axis=0) / (len(spans) - 1)
    caused = [per_step(others * (last == row)) for row in range(len(spans))]
    times = []
    for row, (rank, one) in enumerate(spans.items()):
        exposed = _alone(one.start, one.end, one)
        times.append(
            RankTime(
                rank=rank,
                compute_ns=_median([_compute_ns(one, number) for number in steps[usual].tolist()]),
                overlapped_communication_ns=per_step(_alone(one.start, one.end) - exposed),
                exposed_communication_ns=per_step(exposed - waiting[row]),
                waiting_ns=per_step(waiting[row]),
                came_last_frac=float((last == row).mean()),
                caused_wait_ns=caused[row],
                caused_wait_frac=caused[row] / max(1.0, sum(caused)),
            )
        )
    uncertainty_ns = float(np.median(end.max(axis=0) - end.min(axis=0)))
    return Waits(tuple(times), tuple(steps[usual].tolist()), last.size, uncertainty_ns)


def _without_pauses(spans: dict[int, _Spans], step: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for each step whether the recorder paused no rank after the collectives of the step before.

    Before the first step it always did, to start the profiler. If no other step is left, all of them are.
    """
    chosen = np.ones(step.max() + 1, dtype=np.bool_)
    chosen[0] = False
    for one in spans.values():
        until = np.array([one.end[step == place].max() for place in range(chosen.size)])
        paused = np.searchsorted(until, one.pauses)
        chosen[paused[paused < chosen.size]] = False
    return chosen if chosen.any() else ~chosen


def _alone(start: I64, end: I64, one: _Spans | None = None) -> I64:
    """Return how long each interval ran, without the time in which an earlier one ran or the rank ``one`` computed."""
    order, begin, until = _without_overlaps(start, end)
    alone = np.empty_like(start)
    alone[order] = until - begin
    if one is not None and one.compute_start.size:
        alone[order] -= _computed_until(one, until) - _computed_until(one, begin)
    return alone


def _computed_until(one: _Spans, times_ns: I64) -> I64:
    """Return for how long a rank had computed at each time."""
    _, begin, until = _without_overlaps(one.compute_start, one.compute_end)
    place = np.searchsorted(begin, times_ns, side="right")
    before = np.concatenate(([0], np.cumsum(until - begin)))
    return before[place] - np.where(place > 0, np.maximum(until[place - 1] - times_ns, 0), 0)


def _without_overlaps(start: I64, end: I64) -> tuple[I64, I64, I64]:
    """Return the order of intervals by start, and their begins and ends without the time of earlier ones."""
    order = np.argsort(start, kind="stable")
    until = np.maximum.accumulate(end[order])
    return order, np.maximum(start[order], np.concatenate((start[order][:1], until[:-1]))), until


def _compute_ns(one: _Spans, step: int) -> int:
    mine = one.compute_step == step
    return union_ns(one.compute_start[mine], one.compute_end[mine]) if mine.any() else 0


def _median(values: Sequence[float] | NDArray[Any]) -> float:
    return float(np.quantile(values, 0.5, method="lower"))
