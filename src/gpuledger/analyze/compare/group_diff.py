"""Differences between two groups of runs, each with a confidence interval and a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from gpuledger.analyze.compare.comparable import compare_ranks, compare_runs, own_notes
from gpuledger.analyze.compare.metrics import KINDS, measure, metric_devices
from gpuledger.analyze.compare.welch import Interval, difference
from gpuledger.analyze.memory.breakdown import fold_path
from gpuledger.analyze.memory.instant import module_classes
from gpuledger.analyze.memory.lifetimes import device_indices, pick_device
from gpuledger.analyze.memory.tree import OUTSIDE_PATH
from gpuledger.analyze.overview.summary import device_name
from gpuledger.analyze.step.steps import BUSY_FRAC
from gpuledger.analyze.step.times import break_down_time
from gpuledger.errors import EmptyRunError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuledger.model.run import Rank, Run

CONFIDENCE = 0.95
FEWEST_RUNS = 2
MODULE = "module:"
TIMING = "time by module"
Values = dict[str, tuple[float, float]]
"""Name of a value -> the value, and its variation from step to step; 0 if that is unknown."""


@dataclass(frozen=True)
class GroupChange:
    """One value of two groups of runs: all values, and the difference of their means.

    ``name`` is a metric, or ``module:PATH`` for the time of a module in ns per step. ``unit`` is B, ns, J or 1.
    ``host_was_busy``: the CPU did other work, so that times of the groups cannot be compared.
    """

    name: str
    unit: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    interval: Interval
    host_was_busy: bool = False

    @property
    def before_mean(self) -> float:
        """Return the mean of the runs before."""
        return fmean(self.before)

    @property
    def after_mean(self) -> float:
        """Return the mean of the runs after."""
        return fmean(self.after)

    @property
    def is_significant(self) -> bool:
        """Return whether the confidence interval of the difference does not contain 0, and the host was not busy."""
        return self.interval.is_significant and not self.host_was_busy


@dataclass(frozen=True)
class GroupDiff:
    """Two groups of runs, compared on the device with the highest peak of the first run; on its own if a run lacks it.

    The intervals of ``figures`` have the confidence level ``confidence`` each. Those of ``modules`` have it together:
    of many modules, some would otherwise differ by chance. ``modules`` are sorted by difference, the largest first.
    ``rank_of_several`` is the rank of the first run; None if its program has one process.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    rank: int
    rank_of_several: int | None
    device_idx: int
    device_name: str
    after_device_idx: int
    after_device_name: str
    confidence: float
    figures: tuple[GroupChange, ...]
    modules: tuple[GroupChange, ...]
    classes: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def is_significant(self) -> bool:
        """Return whether any value differs significantly."""
        return any(change.is_significant for change in (*self.figures, *self.modules))


def diff_groups(
    before: Sequence[Run],
    after: Sequence[Run],
    *,
    depth: int | None = None,
    rank: int | None = None,
    device_idx: int | None = None,
    confidence: float = CONFIDENCE,
) -> GroupDiff:
    """Return how the runs in ``after`` differ from those in ``before``.

    Values that a run does not have are left out, with a note.

    Args:
        before: Two or more runs of one program.
        after: Two or more runs of another version of it.
        depth: Truncate module paths to their first ``depth`` components.
        rank: Compare this rank; None selects the first.
        device_idx: Compare this device; None selects the one with the highest peak of the first run.
        confidence: Confidence level of the intervals.

    Raises:
        EmptyRunError: a run has no values.
        UsageError: a group has fewer than two runs, or a run has no such rank.
    """
    for group in (before, after):
        if len(group) < FEWEST_RUNS:
            raise UsageError(
                f"{group[0].name}: a group needs at least {FEWEST_RUNS} runs",
                hint="Record the program several times with: gpuledger run --repeat 5 train.py",
            )
    ranks = [[_rank_of(run, rank) for run in group] for group in (before, after)]
    first = ranks[0][0]
    devices = [[_device_of(one, first) if device_idx is None else device_idx for one in group] for group in ranks]
    values = [
        [_values(one, device, depth) for one, device in zip(*both, strict=True)]
        for both in zip(ranks, devices, strict=True)
    ]
    names = list(dict.fromkeys(name for group in values for one in group for name in one))
    common = [name for name in names if all(_has(one, name) for group in values for one in group)]
    if not common:
        raise EmptyRunError(f"{before[0].name}, {after[0].name}: the two groups have no value in common")
    changes = _changes(common, values, confidence, on_host=any(device < 0 for group in devices for device in group))
    lacking = dict.fromkeys(KINDS[name].title if name in KINDS else TIMING for name in names if name not in common)
    notes = [f"Not all of the runs have a value for {title}, so it is not compared." for title in lacking]
    notes += _notes(before, after, ranks)
    return GroupDiff(
        tuple(run.name for run in before),
        tuple(run.name for run in after),
        first.number,
        first.number_of_several,
        devices[0][0],
        device_name(first, devices[0][0]),
        devices[1][0],
        device_name(ranks[1][0], devices[1][0]),
        confidence,
        tuple(change for change in changes if change.name in KINDS),
        tuple(sorted((one for one in changes if one.name not in KINDS), key=lambda one: -abs(one.interval.delta))),
        module_classes(ranks[1][0]) | module_classes(first),
        tuple(dict.fromkeys(notes)),
    )


def _rank_of(run: Run, number: int | None) -> Rank:
    if not run.ranks:
        raise EmptyRunError(f"{run.path.name}: nothing was recorded", hint="See why with: gpuledger show RUN")
    return run.ranks[0] if number is None else run.rank(number)


def _device_of(rank: Rank, first: Rank) -> int:
    """Return the device of the first run's rank that is compared, or this rank's own one if it has no such device."""
    devices, others = metric_devices(rank), metric_devices(first)
    if not devices or not others:
        raise EmptyRunError(f"rank {rank.number}: nothing was recorded", hint="See why with: gpuledger show RUN")
    wanted = pick_device(first) if device_indices(first) else others[0]
    if wanted in devices:
        return wanted
    return pick_device(rank) if device_indices(rank) else devices[0]


def _values(rank: Rank, device_idx: int, depth: int | None) -> Values:
    """Return value and spread of each metric, and of the time of each module in ns per step, by name."""
    found = {name: (metric.value, metric.spread or 0.0) for name, metric in measure(rank, device_idx).items()}
    time = break_down_time(rank, device_idx)
    for one in () if time is None else time.accounts:
        name = MODULE + (fold_path(one.module, depth) or OUTSIDE_PATH)
        value, spread = found.get(name, (0.0, 0.0))
        found[name] = value + one.time_ns, spread + (one.spread_ns or 0.0)
    return found


def _has(values: Values, name: str) -> bool:
    """Return whether a run has ``name``. A module that took no time is 0 if the run has times of modules."""
    return name in values or (name not in KINDS and any(one.startswith(MODULE) for one in values))


def _changes(
    names: Sequence[str], values: Sequence[Sequence[Values]], confidence: float, *, on_host: bool
) -> list[GroupChange]:
    """Return the change of each value.

    Runs on the CPU that follow each other share the load of the machine, so they agree better than their steps do. The
    interval of their times is at least as wide as the steps vary, and on a busy host it says nothing.
    """
    modules = sum(name not in KINDS for name in names)
    busy = on_host and any(_step_spread_frac(group) > BUSY_FRAC for group in values)
    found = []
    for name in names:
        level = confidence if name in KINDS else 1 - (1 - confidence) / modules
        unit = KINDS[name].unit if name in KINDS else "ns"
        pairs = [[one.get(name, (0.0, 0.0)) for one in group] for group in values]
        before, after = (tuple(value for value, _ in group) for group in pairs)
        interval = difference(before, after, level)
        if on_host and unit == "ns":
            interval = interval.at_least(math.hypot(*(fmean(spread for _, spread in group) for group in pairs)))
        found.append(GroupChange(name, unit, before, after, interval, busy and unit == "ns"))
    return found


def _step_spread_frac(group: Sequence[Values]) -> float:
    """Return by how much the slowest steps are longer than the median, the mean of the runs; 0 if unknown."""
    times = [one["step_time_ns"] for one in group if "step_time_ns" in one]
    return fmean(spread / value for value, spread in times) if times else 0.0


def _notes(before: Sequence[Run], after: Sequence[Run], ranks: Sequence[Sequence[Rank]]) -> list[str]:
    """Return the notes that a diff of the first run with each other one would have."""
    first, notes = before[0], []
    for run, rank in [*zip(before[1:], ranks[0][1:], strict=True), *zip(after, ranks[1], strict=True)]:
        notes += [*compare_runs(first, run, 1), *compare_ranks(ranks[0][0], rank), *own_notes(first, run)]
    return notes
