"""Differences between two runs: metrics, and memory, time and energy by category and module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpuledger.analyze.compare.changes import Change, Key, Noise, Parts, is_busy, metric_change, sorted_changes
from gpuledger.analyze.compare.comparable import compare_ranks, compare_runs, own_notes
from gpuledger.analyze.compare.metrics import KINDS, Metric, measure, metric_devices
from gpuledger.analyze.memory.breakdown import Account, Breakdown, break_down, fold_path
from gpuledger.analyze.memory.groups import label_of
from gpuledger.analyze.memory.instant import find_peak, module_classes, resolve_instant
from gpuledger.analyze.memory.lifetimes import device_indices, no_such_device, pick_device, title
from gpuledger.analyze.memory.tree import OUTSIDE_PATH
from gpuledger.analyze.overview.summary import device_name
from gpuledger.analyze.step.energy import IDLE, EnergyAccount, break_down_energy
from gpuledger.analyze.step.line_accounts import energies_by_line, times_by_line
from gpuledger.analyze.step.steps import whole_steps
from gpuledger.analyze.step.times import TimeAccount, TimeBreakdown, break_down_time
from gpuledger.errors import EmptyRunError
from gpuledger.model.shown import Shown
from gpuledger.units import counted, format_bytes

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run

_STEPS_LOOKED_AT = 5
FEWEST_PROFILED_STEPS = 3
"""With fewer profiled steps, the variation of a layer's time is unknown."""
IDLE_MODULE = "(idle)"
KeyOf = Callable[[Account], Key]


@dataclass(frozen=True)
class Side:
    """One device of one rank of one run.

    Attributes:
        rank_of_several: Its rank; None if the program has one process.
        breakdown: Peak memory by category. None if the run has no recorded blocks.
        step_breakdowns: Peak memory by category of each recorded step after the first. How much a category varies
            between these steps is the noise that a difference between two runs must exceed.
        times: Time of one step by phase and module. Empty if the run has no timing measurement.
        energies: Energy of one step by phase and module. Empty if the run has no energy measurement.
        classes: Module path -> class name.
        profiled_steps: Number of steps that ``times`` is the mean of.
        work_by: What ``times`` and ``energies`` are divided by: ``module``, or ``line`` or ``function``. These stand in
            place of the module.
        is_compiled: Whether ``torch.compile`` compiled a part of the program.
    """

    run: str
    rank: int
    rank_of_several: int | None
    device_idx: int
    device_name: str
    metrics: dict[str, Metric]
    breakdown: Breakdown | None
    step_breakdowns: tuple[Breakdown, ...]
    times: tuple[TimeAccount, ...] = ()
    energies: tuple[EnergyAccount, ...] = ()
    classes: Mapping[str, str] = field(default_factory=dict)
    profiled_steps: int = 0
    work_by: str = "module"
    is_compiled: bool = False


@dataclass(frozen=True)
class PlaceDiff:
    """Two devices, compared."""

    before: Side
    after: Side

    @property
    def figures(self) -> tuple[Change, ...]:
        """Return the metrics that differ, in the order of the metrics. Of CPU tensors, nothing is reserved."""
        on_cpu = max(self.before.device_idx, self.after.device_idx) < 0
        names = [name for name in KINDS if not (on_cpu and name == "peak_reserved_bytes")]
        pairs = ((name, self.before.metrics.get(name), self.after.metrics.get(name)) for name in names)
        return tuple(metric_change(name, old, new) for name, old, new in pairs if _value(old) != _value(new))

    def changes(self, group_by: str | None = None) -> tuple[Change, ...]:
        """Return the sums that differ, the largest change first. Their deltas add up to that of allocated bytes.

        Args:
            group_by: ``category``, ``module``, ``phase``, ``tensor``, ``scope``, ``line`` or ``function`` sums by that;
                None keeps every combination.
        """
        if self.before.breakdown is None or self.after.breakdown is None:
            return ()
        key_of = _key_of(group_by)
        before, after = _parts(self.before.breakdown, key_of), _parts(self.after.breakdown, key_of)
        noise = _noise((self.before, self.after), key_of)
        return sorted_changes(before, after, lambda key, _: Noise(None if noise is None else noise(key)))

    def time_changes(self) -> tuple[Change, ...]:
        """Return the modules with a different time per step, in ns, the largest change first.

        The noise is the difference between the longest and the shortest profiled step of a run, the larger of both
        runs, but not less than the step's own variation in proportion. With fewer than :data:`FEWEST_PROFILED_STEPS`
        in a run, or on a busy host, it is not known. Empty if a run has no timing measurement.
        """
        if not (self.before.times and self.after.times):
            return ()
        share = _step_spread(self.before, self.after)
        before, after = (_by_phase((one.module, one.phase, one.time_ns) for one in side.times) for side in self._sides)
        steps = [side.metrics.get("step_time_ns") for side in self._sides]
        known = min(side.profiled_steps for side in self._sides) >= FEWEST_PROFILED_STEPS and not is_busy(*steps)
        spreads = [
            _by_phase((one.module, one.phase, one.spread_ns or 0.0) for one in side.times)
            for side in self._sides
            if side.profiled_steps > 1
        ]

        def noise_of(key: Key, sums: tuple[float, float]) -> Noise:
            found = [sum(spread.get(key, {}).values()) for spread in spreads]
            found += [] if share is None else [share * max(sums)]
            return Noise(max(found, default=None), known)

        return sorted_changes(before, after, noise_of)

    def energy_changes(self) -> tuple[Change, ...]:
        """Return the modules with a different energy per step, in J, the largest change first.

        The noise is the uncertainty of a module's energy, the larger one of both runs. Empty if a run has no energy
        measurement, or no energy by module.
        """
        if not all(any(one.module for one in side.energies) for side in self._sides):
            return ()
        before, after = (
            _by_phase((_energy_module(one), one.phase, one.energy_j) for one in side.energies) for side in self._sides
        )
        off: list[dict[Key, float]] = [{}, {}]
        for side, sums in zip(self._sides, off, strict=True):
            for one in side.energies:
                key = (_energy_module(one),)
                sums[key] = sums.get(key, 0.0) + one.uncertainty_j
        return sorted_changes(before, after, lambda key, _: Noise(max(sums.get(key, 0.0) for sums in off)))

    @property
    def _sides(self) -> tuple[Side, Side]:
        return self.before, self.after

    @property
    def is_empty(self) -> bool:
        """Return whether nothing differs."""
        return not (self.figures or self.changes() or self.time_changes() or self.energy_changes())


@dataclass(frozen=True)
class Diff(Shown):
    """Two runs, compared device by device. ``notes`` say why they are hard to compare."""

    before: str
    after: str
    places: tuple[PlaceDiff, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        figures, accounts = len(self.main.figures), len(self.main.changes())
        differ = f"{counted(figures, 'value')} and {counted(accounts, 'row')} differ"
        return f"<Diff of {self.before!r} and {self.after!r}: {'no difference' if self.is_empty else differ}>"

    @property
    def is_empty(self) -> bool:
        """Return whether nothing differs anywhere."""
        return all(place.is_empty for place in self.places)

    @property
    def main(self) -> PlaceDiff:
        """Return the device with the highest allocated peak in either run."""
        return max(self.places, key=lambda place: max(_peak(place.before), _peak(place.after)))


def diff_runs(
    before: Run,
    after: Run,
    by: tuple[str, ...] = ("category", "module"),
    depth: int | None = None,
    at: str = "peak",
    step: int | None = None,
    rank: int | None = None,
    device_idx: int | None = None,
) -> Diff:
    """Return how ``after`` differs from ``before``.

    Args:
        before: The reference run.
        after: The run that is compared with it.
        by: What to break down by, as in :func:`~gpuledger.analyze.memory.breakdown.break_down`.
        depth: Truncate module paths to their first ``depth`` components.
        at: ``peak``, ``end`` or a time, in each run.
        step: Use the instant of this step.
        rank: Compare only this rank; None compares those that both runs have.
        device_idx: Compare only this device; None compares those that both runs have.

    Raises:
        EmptyRunError: a run has nothing to compare.
        UsageError: a run has no such rank or device, or ``at`` is not in it.
    """
    pairs = _pair_ranks(before, after, rank)
    places, notes = [], [*compare_runs(before, after, len(pairs))]
    for old, new in pairs:
        notes += compare_ranks(old, new)
        for old_device, new_device in _pair_devices(old, new, device_idx):
            how = (by, depth, at, step)
            sides = _read_side(before, old, old_device, how), _read_side(after, new, new_device, how)
            places.append(PlaceDiff(*sides))
            notes += [*_lone_passes(*sides), *_compiled_notes(*sides)]
    if not any(side.metrics or side.breakdown for place in places for side in (place.before, place.after)):
        raise EmptyRunError(f"{before.name}, {after.name}: neither run has values that can be compared")
    notes += own_notes(before, after)
    return Diff(before.name, after.name, tuple(places), tuple(dict.fromkeys(notes)))


def _pair_ranks(before: Run, after: Run, wanted: int | None) -> list[tuple[Rank, Rank]]:
    for run in (before, after):
        if not run.ranks:
            raise EmptyRunError(f"{run.path.name}: nothing was recorded", hint="See why with: gpuledger show RUN")
    if wanted is not None:
        return [(before.rank(wanted), after.rank(wanted))]
    numbers = [rank.number for rank in before.ranks]
    common = [rank.number for rank in after.ranks if rank.number in numbers]
    return [(before.rank(number), after.rank(number)) for number in common] or [(before.ranks[0], after.ranks[0])]


def _pair_devices(before: Rank, after: Rank, wanted: int | None) -> list[tuple[int, int]]:
    """Return the devices to compare: those that both have, or else the one with the highest peak of each."""
    have, other = metric_devices(before), metric_devices(after)
    for rank, devices in ((before, have), (after, other)):
        if not devices:
            raise EmptyRunError(f"{title(rank)}: nothing was recorded")
        if wanted is not None and wanted not in devices:
            raise no_such_device(rank, wanted, devices)
    if wanted is not None:
        return [(wanted, wanted)]
    common = [(number, number) for number in have if number in other]
    return common or [(_first_device(before), _first_device(after))]


def _first_device(rank: Rank) -> int:
    return pick_device(rank) if device_indices(rank) else metric_devices(rank)[0]


def _read_side(run: Run, rank: Rank, device_idx: int, how: tuple[tuple[str, ...], int | None, str, int | None]) -> Side:
    by, depth, at, step = how
    breakdown, step_breakdowns = None, []
    if device_idx in device_indices(rank):
        breakdown = break_down(rank, resolve_instant(rank, at, device_idx, step), by, depth)
        if at == "peak" and step is None:
            peaks = (find_peak(rank, device_idx, number) for number in _steps(rank, device_idx))
            step_breakdowns = [break_down(rank, peak, by, depth) for peak in peaks]
    name = device_name(rank, device_idx)
    metrics = _with_spread(measure(rank, device_idx), step_breakdowns)
    time = break_down_time(rank, device_idx)
    work_by = next((name for name in ("line", "function") if name in by), "module")
    times, energies = _work(rank, device_idx, time, work_by, depth)
    return Side(
        run.name,
        rank.number,
        rank.number_of_several,
        device_idx,
        name,
        metrics,
        breakdown,
        tuple(step_breakdowns),
        times,
        energies,
        module_classes(rank) if work_by == "module" else {},
        0 if time is None else time.steps,
        work_by,
        bool((rank.manifest.compilation and rank.manifest.compilation.is_done) or rank.manifest.fusions),
    )


def _work(
    rank: Rank, device_idx: int, time: TimeBreakdown | None, work_by: str, depth: int | None
) -> tuple[tuple[TimeAccount, ...], tuple[EnergyAccount, ...]]:
    """Return time and energy of a step by ``module``, ``line`` or ``function``."""
    if work_by != "module":
        return times_by_line(rank, device_idx, work_by), energies_by_line(rank, device_idx, work_by)
    energy = break_down_energy(rank, device_idx)
    return (
        () if time is None else tuple(replace(one, module=fold_path(one.module, depth)) for one in time.accounts),
        () if energy is None else tuple(replace(one, module=fold_path(one.module, depth)) for one in energy.accounts),
    )


def _with_spread(metrics: dict[str, Metric], step_breakdowns: list[Breakdown]) -> dict[str, Metric]:
    """Return ``metrics`` with the variation of the allocated peak from step to step."""
    sizes = [breakdown.allocated_bytes for breakdown in step_breakdowns]
    if len(sizes) < 2 or "peak_allocated_bytes" not in metrics:
        return metrics
    peak = replace(metrics["peak_allocated_bytes"], spread=max(sizes) - min(sizes))
    return {**metrics, peak.name: peak}


def _lone_passes(before: Side, after: Side) -> list[str]:
    """Return which measurements only one run has, so that they cannot be compared by module."""
    passes = (
        ("a timing measurement", "times", before.times, after.times),
        ("an energy measurement", "energy", before.energies, after.energies),
    )
    return [
        f"Only {(before if old else after).run} has {measurement}, so {values} by module cannot be compared."
        for measurement, values, old, new in passes
        if bool(old) != bool(new)
    ]


def _compiled_notes(before: Side, after: Side) -> list[str]:
    """Return how much memory compilation saves, if only one side is compiled and both have a breakdown."""
    if before.is_compiled == after.is_compiled or before.breakdown is None or after.breakdown is None:
        return []
    compiled, plain = (after, before) if after.is_compiled else (before, after)
    sizes = [side.breakdown.allocated_bytes for side in (plain, compiled) if side.breakdown is not None]
    saved_bytes = sizes[0] - sizes[1]
    word = "less" if saved_bytes >= 0 else "more"
    return [
        f"Only {compiled.run} is compiled. It has {format_bytes(abs(saved_bytes))} {word} allocated than {plain.run}."
    ]


def _steps(rank: Rank, device_idx: int) -> list[int]:
    """Return some recorded steps after the first, which warms up."""
    return [step for step in whole_steps(rank, device_idx) if step > 1][:_STEPS_LOOKED_AT]


def _value(metric: Metric | None) -> float | None:
    return metric.value if metric else None


def _key_of(group_by: str | None) -> KeyOf:
    if group_by is None:
        return lambda account: (account.category, account.module, account.phase, account.name, account.scope)
    return lambda account: (label_of(account, group_by),)


def _parts(breakdown: Breakdown, key_of: KeyOf) -> Parts:
    """Return the bytes of each key by category."""
    parts: Parts = {}
    for account in breakdown.accounts:
        part = parts.setdefault(key_of(account), {})
        part[account.category] = part.get(account.category, 0) + account.bytes
    return parts


def _by_phase(amounts: Iterable[tuple[str, str, float]]) -> Parts:
    """Return the amount of each module by phase."""
    parts: Parts = {}
    for module, phase, amount in amounts:
        part = parts.setdefault((module or OUTSIDE_PATH,), {})
        part[phase] = part.get(phase, 0) + amount
    return parts


def _energy_module(account: EnergyAccount) -> str:
    """Return the module of an energy; idle energy has its own key."""
    return IDLE_MODULE if account.phase == IDLE else account.module or OUTSIDE_PATH


def _noise(sides: tuple[Side, Side], key_of: KeyOf) -> Callable[[Key], float] | None:
    """Return the variation of a sum between the steps of a run, the larger of both; None if unknown."""
    known = [
        [_parts(breakdown, key_of) for breakdown in side.step_breakdowns]
        for side in sides
        if len(side.step_breakdowns) > 1
    ]
    if not known:
        return None

    def spread(key: Key) -> float:
        seen = [[sum(parts.get(key, {}).values()) for parts in steps] for steps in known]
        return max(max(sizes) - min(sizes) for sizes in seen)

    return spread


def _step_spread(*sides: Side) -> float | None:
    """Return the relative variation of the step time within a run, the larger of both; None if unknown."""
    times = [side.metrics.get("step_time_ns") for side in sides]
    shares = [one.spread / one.value for one in times if one is not None and one.spread is not None and one.value]
    return max(shares, default=None)


def _peak(side: Side) -> float:
    return _value(side.metrics.get("peak_allocated_bytes")) or 0
