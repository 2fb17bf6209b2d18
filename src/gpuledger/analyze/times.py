"""Where a step's time goes: by module and phase, closed against the step's own time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.activities import SPAN_KINDS
from gpuledger.analyze.breakdown import fold_path
from gpuledger.analyze.instant import module_paths
from gpuledger.analyze.live import to_numbers
from gpuledger.analyze.steps import StepTimes, step_times

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class TimeAccount:
    """One module in one phase, per step: ``time_ns`` is the sum of its spans, ``module`` "" outside every module."""

    module: str
    phase: str
    time_ns: float
    spans: float


@dataclass(frozen=True)
class TimeBreakdown:
    """One step of the time pass on one device, the mean of ``steps`` steps; times in nanoseconds.

    ``busy_ns`` is the time in which at least one span was at work (the union), ``work_ns`` the sum of all spans, which
    is more where streams overlap; the accounts sum to it. ``idle_ns`` is derived: the undisturbed step minus busy; None
    without undisturbed steps, or on the host, where operators leave no gaps that mean anything. ``unplaced_ns`` has
    neither a module nor a phase.

    Source: Kineto (CUPTI on a card); the undisturbed step by the host clock.
    """

    device_idx: int
    on_host: bool
    steps: int
    work_ns: float
    busy_ns: float
    idle_ns: float | None
    unplaced_ns: float
    by_kind_ns: dict[str, float]
    undisturbed: StepTimes
    accounts: tuple[TimeAccount, ...]


def break_down_time(rank: Rank, device_idx: int | None = None) -> TimeBreakdown | None:
    """Return where the time of the time pass's steps went on one device; None where there was no time pass.

    Args:
        rank: One process.
        device_idx: torch's index; None takes the device that was busiest.
    """
    columns = ("device_idx", "kind", "start_ns", "end_ns", "module_id", "phase", "step")
    table = rank.table("spans", columns)
    kinds = np.array(table["kind"].to_pylist(), dtype=object)
    phases = np.array(table["phase"].to_pylist(), dtype=object)
    device, start, end, module, step = (
        to_numbers(table[name]) for name in ("device_idx", "start_ns", "end_ns", "module_id", "step")
    )
    timed = rank.manifest.get("time_steps") or [0, -1]
    work = (kinds != "phase") & (step >= timed[0]) & (step <= timed[1])
    if not work.any():
        return None
    chosen = _busiest(device[work], (end - start)[work]) if device_idx is None else device_idx
    mine = work & (device == chosen)
    if not mine.any():
        return None
    count = len(np.unique(step[mine]))
    duration = (end - start)[mine]
    on_host = bool((kinds[mine] == "host").all())
    busy_ns = _union_ns(start[mine], end[mine]) / count
    undisturbed = step_times(rank)
    return TimeBreakdown(
        device_idx=chosen,
        on_host=on_host,
        steps=count,
        work_ns=float(duration.sum()) / count,
        busy_ns=busy_ns,
        idle_ns=None if on_host or undisturbed.median_ns is None else undisturbed.median_ns - busy_ns,
        unplaced_ns=float(duration[(module[mine] < 0) & (phases[mine] == "between")].sum()) / count,
        by_kind_ns={
            kind: float(duration[kinds[mine] == kind].sum()) / count for kind in SPAN_KINDS if kind in kinds[mine]
        },
        undisturbed=undisturbed,
        accounts=_accounts(module_paths(rank), module[mine], phases[mine], duration, count),
    )


def times_by_module(times: TimeBreakdown, depth: int | None = None) -> dict[str, dict[str, float]]:
    """Return ``module path -> phase -> nanoseconds``, paths folded to their first ``depth`` parts."""
    found: dict[str, dict[str, float]] = {}
    for account in times.accounts:
        phases = found.setdefault(fold_path(account.module, depth), {})
        phases[account.phase] = phases.get(account.phase, 0.0) + account.time_ns
    return found


def _accounts(
    paths: dict[int, str], module: I64, phases: NDArray[np.object_], duration: I64, count: int
) -> tuple[TimeAccount, ...]:
    found: dict[tuple[str, str], list[float]] = {}
    for number, phase, one_ns in zip(module.tolist(), phases.tolist(), duration.tolist(), strict=True):
        sums = found.setdefault((paths.get(number, ""), str(phase)), [0.0, 0])
        sums[0] += one_ns
        sums[1] += 1
    accounts = [TimeAccount(path, phase, ns / count, n / count) for (path, phase), (ns, n) in found.items()]
    return tuple(sorted(accounts, key=lambda account: -account.time_ns))


def _busiest(device: I64, duration: I64) -> int:
    devices = np.unique(device)
    return int(max(devices, key=lambda one: int(duration[device == one].sum())))


def _union_ns(start: I64, end: I64) -> int:
    """Return how long at least one of the intervals was under way."""
    order = np.argsort(start, kind="stable")
    start, latest = start[order], np.maximum.accumulate(end[order])
    before = np.concatenate(([start[0]], latest[:-1]))
    return int(np.maximum(latest - np.maximum(start, before), 0).sum())
