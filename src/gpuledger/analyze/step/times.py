"""Time of a step by module and phase, by scope and by source line, with the idle time that completes the step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.instant import module_paths
from gpuledger.analyze.memory.lines.source_lines import line_texts, read_stacks
from gpuledger.analyze.step.gpu_steps import gpu_steps
from gpuledger.analyze.step.steps import StepTimes, step_times
from gpuledger.analyze.step.work import StepWork, names_of, read_work
from gpuledger.model.accounts import SPAN_KINDS

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class TimeAccount:
    """Time of one module in one phase, per step. ``time_ns`` is the sum of its spans, ``module`` "" outside modules.

    ``spread_ns`` is the difference between the longest and the shortest profiled step; None with one step.
    """

    module: str
    phase: str
    time_ns: float
    spans: float
    spread_ns: float | None = None


@dataclass(frozen=True)
class ScopeTime:
    """Time of one scope in one phase, per step. ``time_ns`` is the sum of its spans, ``scope`` "" outside scopes."""

    scope: str
    phase: str
    time_ns: float
    spans: float


@dataclass(frozen=True)
class LineTime:
    """Time of one source line in one phase, per step. ``time_ns`` is the sum of its spans, ``line`` "" without one."""

    line: str
    phase: str
    time_ns: float
    spans: float


@dataclass(frozen=True)
class TimeBreakdown:
    """One profiled step on one device, the mean of ``steps`` steps; times in ns.

    ``busy_ns`` is the time in which at least one span ran (the union). ``work_ns`` is the sum of all spans, which is
    more if streams overlap; the accounts sum to it, and so do the scopes and the lines. ``step_ns`` is the time of an
    unprofiled step. If the profiled steps were busy for longer than that, as with collectives that wait for another
    rank, it is the time of a profiled step on the GPU, and ``of_profiled_step`` is True. ``idle_ns`` is ``step_ns``
    minus busy time; both are None without unprofiled steps, and idle on the host, where gaps between operators mean
    nothing. ``idle_waiting_for_cpu_ns`` is the part of it in which the CPU had launched no work for the device, by the
    share of such gaps in the profiled steps; None if unknown. ``between_ns`` is work that the program launched between
    two steps, such as copies of its data. ``unplaced_ns`` is work without known module, phase and operator.

    Source: Kineto (CUPTI on a GPU), or the recorder if only recorded steps were timed; the unprofiled step by the host
    clock.
    """

    device_idx: int
    on_host: bool
    steps: int
    work_ns: float
    busy_ns: float
    step_ns: float | None
    of_profiled_step: bool
    idle_ns: float | None
    idle_waiting_for_cpu_ns: float | None
    unplaced_ns: float
    between_ns: float
    by_kind_ns: dict[str, float]
    unprofiled: StepTimes
    accounts: tuple[TimeAccount, ...]
    scopes: tuple[ScopeTime, ...] = ()
    lines: tuple[LineTime, ...] = ()


def break_down_time(rank: Rank, device_idx: int | None = None) -> TimeBreakdown | None:
    """Return the time of the profiled steps on one device; None without a timing measurement.

    Args:
        rank: One process.
        device_idx: torch's index; None selects the busiest device.
    """
    work = read_work(rank, device_idx)
    if work is None:
        return None
    count, duration, busy_ns = work.steps, work.duration_ns, work.busy_ns
    unprofiled = step_times(rank)
    between = (work.module_id < 0) & (work.phase == "between")
    unplaced = between & (work.operator_id < 0) & (not work.on_host)
    step_ns, of_profiled_step = _step_around(rank, work, unprofiled)
    idle_ns = None if work.on_host or step_ns is None else step_ns - busy_ns
    kinds = {kind: float(duration[work.kind == kind].sum()) / count for kind in SPAN_KINDS if kind in work.kind}
    return TimeBreakdown(
        device_idx=work.device_idx,
        on_host=work.on_host,
        steps=count,
        work_ns=float(duration.sum()) / count,
        busy_ns=busy_ns,
        step_ns=step_ns,
        of_profiled_step=of_profiled_step,
        idle_ns=idle_ns,
        idle_waiting_for_cpu_ns=_idle_waiting_for_cpu_ns(rank, work.device_idx, idle_ns),
        unplaced_ns=float(duration[unplaced].sum()) / count,
        between_ns=float(duration[between & ~unplaced].sum()) / count,
        by_kind_ns=kinds,
        unprofiled=unprofiled,
        accounts=tuple(TimeAccount(*row) for row in sums_of(module_paths(rank), work.module_id, work)),
        scopes=tuple(ScopeTime(*row[:4]) for row in sums_of(names_of(rank), work.scope_id, work)),
        lines=tuple(LineTime(*row[:4]) for row in sums_of(line_texts(read_stacks(rank)), work.stack_id, work)),
    )


def _step_around(rank: Rank, work: StepWork, unprofiled: StepTimes) -> tuple[float | None, bool]:
    """Return the step that contains the busy time in ns, and whether it is a profiled one."""
    if unprofiled.median_ns is None:
        return None, False
    on_gpu = None if unprofiled.median_ns >= work.busy_ns else gpu_steps(rank, work.device_idx)
    return (float(unprofiled.median_ns), False) if on_gpu is None else (max(on_gpu.mean_ns, work.busy_ns), True)


def _idle_waiting_for_cpu_ns(rank: Rank, device_idx: int, idle_ns: float | None) -> float | None:
    found = [one for one in rank.manifest.host_waits if one.device_idx == device_idx and one.gap_ns]
    return None if idle_ns is None or not found else idle_ns * found[0].host_ns / found[0].gap_ns


def sums_of(texts: dict[int, str], ids: I64, work: StepWork) -> list[tuple[str, str, float, float, float | None]]:
    """Return text, phase, ns, spans and spread in ns of one step for each text that occurs, the longest first."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    spans: Counter[tuple[str, str]] = Counter()
    columns = (ids, work.phase, work.step, work.duration_ns)
    for number, phase, step, one_ns in zip(*(column.tolist() for column in columns), strict=True):
        key = (texts.get(number, ""), str(phase))
        by_step = found.setdefault(key, {})
        by_step[step] = by_step.get(step, 0.0) + one_ns
        spans[key] += 1
    rows = [
        (*key, sum(by_step.values()) / work.steps, spans[key] / work.steps, _spread_ns(by_step, work.steps))
        for key, by_step in found.items()
    ]
    return sorted(rows, key=lambda row: -row[2])


def _spread_ns(by_step: dict[int, float], steps: int) -> float | None:
    """Return the difference between the longest and the shortest of ``steps``; one that is missing took no time."""
    shortest = min(by_step.values()) if len(by_step) == steps else 0.0
    return max(by_step.values()) - shortest if steps > 1 else None
