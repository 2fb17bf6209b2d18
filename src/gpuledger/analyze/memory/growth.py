"""Memory that grows step after step: how fast, since when, until when, and what holds it.

Growth is a floor that rises steadily until the last step: the lowest value of each eighth of the later steps is above
the one before, by similar amounts. On the host, censuses must show what became more, too. A warm-up, a full cache and
steps of various sizes do not do that. Inputs that grow raise the floor with the same number of blocks, and the peak
above the floor. The cache of a text that is generated grows until the text ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.generations import is_one_generation
from gpuledger.analyze.memory.growth_origin import RetainedBlocks, origin_of
from gpuledger.analyze.memory.kept_growth import find_kept_tensors
from gpuledger.analyze.memory.lifetimes import distinct_numbers, read_labels, read_numbers
from gpuledger.analyze.memory.trends import FEWEST_STEPS, PARTS, rising
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.model.accounts import ONE_OF_EACH_WEIGHT
from gpuledger.model.flight_facts import (
    CENSUS_RATIO,
    EXPLAINED_FRAC,
    FEWEST_TENSORS,
    FIRST_CENSUS_STEPS,
    GROWN_BYTES,
    HOST,
)
from gpuledger.model.pass_facts import TIME_STEPS, UNPROFILED_STEPS

if TYPE_CHECKING:
    from gpuledger.analyze.memory.trends import F64, Trend
    from gpuledger.model.flight_facts import CensusFacts, Holder
    from gpuledger.model.run import Rank

FEWEST_FAILED_STEPS = 8
"""As FEWEST_STEPS, where a request has failed: then it is known that memory did not stop growing in time."""
FEWEST_HOST_STEPS = 64
_OUT_OF_MEMORY = "OutOfMemoryError"
_LEAST_BYTES = 64 << 10
_FEWEST_COLLECTIONS = 2
"""Number of garbage collections after which what is left is none: the first can be right after memory began to grow."""
_LEAST_CONFIRMED_BYTES = GROWN_BYTES // 2
_LEAST_HOST_BYTES = 32 << 20
_EXPLAINED = 1.5
"""Largest ratio of the growth to what a container gains with which it holds all that grows."""
_FRAGMENTED = 4.0
"""The same if it has all new tensors. The C library leaves gaps between tensors of some 100 KiB."""
_OFTEN = 0.5
"""Number of tensors per step by which they become more in a leak, if their bytes were not counted."""


@dataclass(frozen=True)
class Growth:
    """Memory of one device, -1 for the host, that grew until the last step.

    ``steps_left`` is the number of steps until it reaches ``limit_bytes``; None if no limit is known. ``category``,
    ``module`` and ``line`` are those of the blocks that the recorded steps kept; "" if unknown. ``steps_until_full`` is
    the number of steps until the holder has reached its limit; None if it has none, or does not hold all that grows.
    ``rank_of_several`` is None if the program has one process. ``has_ended`` is whether an out-of-memory error of a GPU
    has ended the program, so that memory grows no more.
    """

    rank: int
    device_idx: int
    step_bytes: float
    since_step: int
    last_step: int
    grown_bytes: int
    limit_bytes: int | None
    steps_left: int | None
    holder: Holder | None
    category: str = ""
    module: str = ""
    line: str = ""
    steps_until_full: int | None = None
    rank_of_several: int | None = None
    has_ended: bool = False

    @property
    def will_end(self) -> bool:
        """Return whether memory stops growing before the limit, because the holder is full by then."""
        full = self.steps_until_full
        return full is not None and (self.steps_left is None or full < self.steps_left)


def find_growth(rank: Rank, failed_step: int | None = None) -> tuple[Growth, ...]:
    """Return the growth of every device and of the host.

    Args:
        rank: The rank.
        failed_step: The step in which a request of memory failed; None if none did. Growth before that is looked for,
            and fewer steps suffice on a GPU.

    Source: the allocator's counters and the process's host memory at every step, and censuses of live tensors.
    """
    columns = ("device_idx", "step", "allocated_bytes", "peak_allocated_bytes", "blocks", "host_bytes")
    table = rank.table("step_memory", columns)
    values = {name: table.column(name).to_numpy(zero_copy_only=False).astype(np.float64) for name in columns}
    fewest = FEWEST_STEPS if failed_step is None else FEWEST_FAILED_STEPS
    is_seen = values["step"] < (math.inf if failed_step is None else failed_step)
    calls = rank.manifest.calls if failed_step is None else ()
    found = []
    for device_idx in distinct_numbers(values["device_idx"].astype(np.int64)).tolist():
        mine = {name: column[(values["device_idx"] == device_idx) & is_seen] for name, column in values.items()}
        if device_idx >= 0:
            growth = _of_device(rank, device_idx, mine, fewest)
        else:
            growth = _of_host(rank, mine) or _of_kept_tensors(rank, mine)
        if growth is not None and not is_one_generation(calls, growth.since_step):
            has_ended = device_idx >= 0 and rank.manifest.exit_error == _OUT_OF_MEMORY
            found.append(replace(growth, rank_of_several=rank.number_of_several, has_ended=has_ended))
    return tuple(found)


@dataclass(frozen=True)
class CountedSteps:
    """Number of steps with a measurement at their end, and the number from which on growth can be shown.

    ``without_census`` is whether a census of tensors was due and was not taken, so that more steps are needed.
    ``misses_calls`` is whether the steps are calls of a model, which nothing observes after the measurements.
    """

    counted: int
    needed: int
    without_census: bool = False
    misses_calls: bool = False

    @property
    def are_enough(self) -> bool:
        """Return whether growth would have been found."""
        return self.counted >= self.needed


def counted_steps(rank: Rank) -> CountedSteps:
    """Return how many steps were counted, and how many are needed.

    Allocated bytes on a GPU are exact from the first step on. Host memory is compared after the measurements,
    and growth needs a second census, which is due after :data:`CENSUS_RATIO` times as many steps. Without a census, as
    in a program with steps that end inside backward, only growth shows that is large and steady.
    """
    table = rank.table("step_memory", ("device_idx", "step"))
    steps = table.column("step").to_numpy()
    counted = int(distinct_numbers(steps).size)
    misses_calls = _misses_calls(rank)
    if not counted or (table.column("device_idx").to_numpy() >= 0).any():
        return CountedSteps(counted, FEWEST_STEPS, misses_calls=misses_calls)
    first = _censuses(rank)[0]
    due = _first_census_due(rank) if first is None else first.step
    if first is None and counted >= due:
        return CountedSteps(counted, _last_measured_step(rank) + FEWEST_HOST_STEPS - 1, True, misses_calls)
    needed = max(due + FEWEST_STEPS - 1, math.ceil(CENSUS_RATIO * due))
    return CountedSteps(counted, needed, misses_calls=misses_calls)


def _misses_calls(rank: Rank) -> bool:
    kinds = rank.table("steps", ("kind",)).column("kind").to_pylist()
    return rank.manifest.status == "closed" and not rank.manifest.has_all_steps and kinds[-1:] == ["call"]


def _of_device(rank: Rank, device_idx: int, values: dict[str, F64], fewest: int) -> Growth | None:
    steps, allocated = values["step"], values["allocated_bytes"]
    trend = rising(steps, allocated, fewest=fewest) or _rising_in_stairs(rank, steps, allocated)
    if trend is None or trend.total < max(_LEAST_BYTES, 0.002 * float(allocated[-1])):
        return None
    has_more_blocks = rising(steps, values["blocks"], fewest=fewest) is not None
    if not has_more_blocks and _grows_with_inputs(steps, allocated, values["peak_allocated_bytes"], fewest):
        return None
    limit = limit_bytes_of(rank, device_idx)
    peak = float(values["peak_allocated_bytes"][-1])
    left = None if limit is None or math.isnan(peak) else max(int((limit - peak) / trend.per_step), 0)
    return Growth(
        *(rank.number, device_idx, trend.per_step, trend.since_step, int(steps[-1]), round(trend.total), limit, left),
        *(last_holder(rank), *_kept_by_recorded_steps(rank, device_idx, trend.per_step)),
        steps_until_full=_steps_until_full(rank, trend.per_step, int(steps[-1])),
    )


def _rising_in_stairs(rank: Rank, steps: F64, values: F64) -> Trend | None:
    """Return a rise that comes from time to time, as with each evaluation, if the censuses show what has grown."""
    first, last = _censuses(rank)
    trend = rising(steps, values, PARTS // 2)
    if trend is None or first is None or last is None or last.holder is None:
        return None
    passed = last.step - max(first.step, trend.since_step)
    return trend if passed > 0 and _still_grows(rank, last, last.holder, trend, passed) else None


def limit_bytes_of(rank: Rank, device_idx: int) -> int | None:
    """Return the GPU's size, or the limit that the program set for itself, if an error showed it."""
    capacity = rank.manifest.device(device_idx).total_bytes
    failures = [one for one in rank.manifest.oom if (one.device_idx or 0) == device_idx]
    limits = [limit for one in failures if (limit := one.own_limit_bytes(capacity)) is not None]
    return min(limits, default=capacity)


def _of_host(rank: Rank, values: dict[str, F64]) -> Growth | None:
    """Return the growth of host memory, if the censuses confirm it or it is large and steady."""
    first, last = _censuses(rank)
    after = first.step if first is not None else _last_measured_step(rank)
    later = values["step"] >= after
    steps, host = values["step"][later], values["host_bytes"][later]
    # host memory grows in pages and arenas: with censuses to confirm it, longer parts suffice
    trend = rising(steps, host, PARTS if last is None else PARTS // 2)
    if trend is None or trend.total < (_LEAST_BYTES if last is None else _LEAST_CONFIRMED_BYTES):
        return None
    confirmed = first is not None and last is not None and _has_more(rank, first, last, trend)
    is_large = steps.size >= FEWEST_HOST_STEPS and trend.total >= _LEAST_HOST_BYTES and last is None
    if not (confirmed or is_large):
        return None
    return Growth(
        *(rank.number, HOST, trend.per_step, trend.since_step, int(steps[-1]), round(trend.total)),
        *_host_limit(rank, trend.per_step, float(host[-1])),
        last_holder(rank) or _holder_of_tensors(rank, int(steps[-1]), trend),
        *_kept_by_recorded_steps(rank, HOST, trend.per_step),
        steps_until_full=_steps_until_full(rank, trend.per_step, int(steps[-1])),
    )


def _holder_of_tensors(rank: Rank, last_step: int, trend: Trend) -> Holder | None:
    """Return the container with the tensors that explain a trend; memory touched once hid them from two censuses."""
    kept = find_kept_tensors(rank, last_step)
    return kept.holder if kept is not None and kept.step_bytes >= EXPLAINED_FRAC * trend.per_step else None


def _of_kept_tensors(rank: Rank, values: dict[str, F64]) -> Growth | None:
    """Return the growth by tensors that one container keeps. Memory that was free in the process can hide it."""
    last_step = int(values["step"].max(initial=0))
    kept = find_kept_tensors(rank, last_step)
    if kept is None:
        return None
    grown_bytes = round(kept.step_bytes * (last_step - kept.since_step))
    return Growth(
        *(rank.number, HOST, kept.step_bytes, kept.since_step, last_step, grown_bytes),
        *(*_host_limit(rank, kept.step_bytes, float(values["host_bytes"][-1])), kept.holder),
        *_kept_by_recorded_steps(rank, HOST, kept.step_bytes),
    )


def _host_limit(rank: Rank, step_bytes: float, in_use_bytes: float) -> tuple[int | None, int | None]:
    """Return the most host memory of the process, and in how many steps it is in use; None if that is not known."""
    limit, has_ended = rank.manifest.host_limit_bytes, any(one.killed for one in rank.manifest.oom)
    is_known = limit is not None and not has_ended and not math.isnan(in_use_bytes)
    return limit, max(int((limit - in_use_bytes) / step_bytes), 0) if is_known and limit is not None else None


def _steps_until_full(rank: Rank, step_bytes: float, last_step: int) -> int | None:
    """Return the number of steps after the last one until the holder is full, at the rate between two censuses."""
    first = _censuses(rank)[0]
    last = next((one for one in reversed(rank.manifest.censuses) if one.holder is not None), None)
    if first is None or last is None or last.holder is None or last.holder.bound is None or last.step <= first.step:
        return None
    holder, per_step = last.holder, last.holder.more / (last.step - first.step)
    ratio = _FRAGMENTED if _has_all_new_tensors(first, last, last.holder) else _EXPLAINED
    if per_step <= 0 or (holder.content != "graph" and per_step * holder.element_bytes * ratio < step_bytes):
        return None
    full_at = last.step + (last.holder.bound - holder.length) / per_step
    return max(math.ceil(full_at) - last_step, 0)


def _has_all_new_tensors(first: CensusFacts, last: CensusFacts, holder: Holder) -> bool:
    """Return whether tensors became more by as many as a holder has gained: nothing else keeps any."""
    if first.tensor_references is None or last.tensor_references is None or not holder.element_tensors:
        return False
    more = last.tensor_references - first.tensor_references
    return more <= (1 + EXPLAINED_FRAC) * holder.more * holder.element_tensors


def _has_more(rank: Rank, first: CensusFacts, last: CensusFacts, trend: Trend) -> bool:
    """Return whether tensors, or what names of the program hold, became more since memory began to, as memory did.

    The bytes of all tensors decide, of those censuses that had the time to count them. Otherwise, tensors must be more
    with every step or two, and the recorded steps must have left blocks of such sizes that are still alive.
    """
    steps = last.step - max(first.step, trend.since_step)
    if steps <= 0:
        return False
    if last.holder is not None and _still_grows(rank, last, last.holder, trend, steps):
        return True
    if _may_be_garbage(rank, last, trend):
        return False
    counted = [one for one in rank.manifest.censuses if one.groups and one.step > trend.since_step]
    if not (first.groups and counted):
        more = (last.tensor_references or 0) - (first.tensor_references or 0)
        grows = more >= _OFTEN * (last.step - first.step)
        return grows and any(_kept_by_recorded_steps(rank, HOST, trend.per_step))
    end = counted[-1]
    steps = end.step - max(first.step, trend.since_step)
    explained = end.tensor_bytes - first.tensor_bytes >= EXPLAINED_FRAC * trend.per_step * steps
    return explained and end.tensors - first.tensors >= FEWEST_TENSORS * steps


def _may_be_garbage(rank: Rank, last: CensusFacts, trend: Trend) -> bool:
    """Return whether Python has collected garbage too seldom since memory began to grow.

    Objects that refer to themselves stay until then, and no name of the program leads to them.
    """
    since = [one for one in rank.manifest.censuses if one.step <= trend.since_step] or rank.manifest.censuses[:1]
    if last.collections is None or not since or since[-1].collections is None:
        return False
    return last.collections - since[-1].collections < _FEWEST_COLLECTIONS


def _still_grows(rank: Rank, last: CensusFacts, holder: Holder, trend: Trend, steps: int) -> bool:
    """Return whether a holder explains the growth since the census before, too: a full container gains nothing.

    Args:
        rank: The rank.
        last: The last census, with ``holder``.
        holder: What has grown since the first census.
        trend: The growth.
        steps: Number of steps from the first census, or from the begin of the growth, to the last census.
    """
    if holder.bound is not None and holder.length >= holder.bound:
        return False
    place, more = (holder.name, holder.where), holder.more
    for one in rank.manifest.censuses:
        if one.holder is not None and one.step < last.step and (one.holder.name, one.holder.where) == place:
            more, steps = holder.length - one.holder.length, last.step - one.step
    if "graph" in (holder.kind, holder.content):
        return more >= 0.1 * steps
    return more * holder.element_bytes >= EXPLAINED_FRAC * trend.per_step * steps


def _grows_with_inputs(steps: F64, allocated: F64, peaks: F64, fewest: int) -> bool:
    """Return whether the peak of a step rises faster than the floor, as with longer inputs."""
    trend, of_peak = rising(steps, allocated, fewest=fewest), rising(steps, peaks, fewest=fewest)
    return trend is not None and of_peak is not None and of_peak.per_step > 1.5 * trend.per_step


def _censuses(rank: Rank) -> tuple[CensusFacts | None, CensusFacts | None]:
    """Return the first census, and the last if it is another one."""
    found = rank.manifest.censuses
    return (found[0] if found else None), (found[-1] if len(found) > 1 else None)


def last_holder(rank: Rank) -> Holder | None:
    """Return what has grown by the last census that has found something, or else by that of a failed request."""
    at_failure = rank.manifest.failure_census
    found = [*([] if at_failure is None else [at_failure]), *rank.manifest.censuses]
    return next((one.holder for one in reversed(found) if one.holder is not None), None)


def _last_measured_step(rank: Rank) -> int:
    window, times, lines = rank.manifest.window, rank.manifest.time_steps, rank.manifest.line_step
    recorded = 0 if window is None or window.last_step is None else window.last_step
    return max(recorded, times[1] if times else 0, lines.step if lines else 0) + 1


def _first_census_due(rank: Rank) -> int:
    """Return the step at which the first census is due; a later one if the program ended before the measurements."""
    window, last = rank.manifest.window, _last_measured_step(rank) - 1
    recorded = 0 if window is None else (window.asked or (None,))[-1] or window.last_step or 0
    return max(last, recorded + TIME_STEPS + 1) + UNPROFILED_STEPS + FIRST_CENSUS_STEPS


def _kept_by_recorded_steps(rank: Rank, device_idx: int, step_bytes: float) -> tuple[str, str, str]:
    """Return category, module and line of most of what the recorded steps allocated and nothing freed."""
    names = ("step", "allocated_bytes", "module_id", "stack_id", "address")
    values = {name: read_numbers(rank, "blocks", name, device_idx) for name in names}
    freed = read_numbers(rank, "blocks", "free_requested_index", device_idx, NEVER)
    codes, words = read_labels(rank, "blocks", "category", device_idx)
    lasting = [words.index(one) for one in ONE_OF_EACH_WEIGHT if one in words]
    step = values["step"]
    kept = (freed == NEVER) & (step >= 1) & ~np.isin(codes, lasting)
    known = rank.manifest.kept_blocks
    if known is not None and known.step >= step.max(initial=0) + FEWEST_LATER_STEPS:
        kept &= np.isin(values["address"], known.addresses)
    blocks = RetainedBlocks(
        codes[kept],
        values["module_id"][kept],
        values["stack_id"][kept],
        step[kept],
        values["allocated_bytes"][kept].astype(np.float64),
    )
    return origin_of(rank, blocks, words, step_bytes)


FEWEST_LATER_STEPS = 4
"""Number of steps after the recorded ones from which on what is alive then decides."""
