"""Changes from one run to another, and whether they are larger than the variation within the runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.compare.metrics import KINDS
from gpuledger.analyze.step.steps import BUSY_FRAC

if TYPE_CHECKING:
    from gpuledger.analyze.compare.metrics import Metric

Key = tuple[str, ...]
Parts = dict[Key, dict[str, float]]
"""Key -> category or phase -> amount."""


@dataclass(frozen=True)
class Change:
    """One metric, or one sum by category, module, ..., that differs.

    ``key`` is the metric's name, the label of a sum, or a combination of category, module, phase, name and scope.
    ``category`` is the one that changed most; for a time it is the phase, for a metric "". ``before`` or ``after`` is
    None if that run does not have the metric; a missing sum is 0. ``noise`` is the variation within the runs; None if
    unknown. ``noise_known`` is False if the variation is unknown, or is that of two steps only: the change can then be
    larger than ``noise`` by chance.
    """

    key: tuple[str, ...]
    category: str
    before: float | None
    after: float | None
    noise: float | None
    noise_known: bool = True

    @property
    def delta(self) -> float | None:
        """``after`` minus ``before``, in the metric's unit; None if either is missing."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def within_noise(self) -> bool:
        """Return whether the change is not larger than the variation within the runs."""
        return self.delta is not None and self.noise is not None and abs(self.delta) <= self.noise

    @property
    def is_certain(self) -> bool:
        """Return whether the change is larger than the variation within the runs, and that variation is known."""
        return self.noise_known and not self.within_noise


@dataclass(frozen=True)
class Noise:
    """The variation of a sum within the runs; ``amount`` is None if nothing is known of it. See :class:`Change`."""

    amount: float | None
    known: bool = True


def metric_change(name: str, before: Metric | None, after: Metric | None) -> Change:
    """Return the change of a metric. Its noise is the variation from step to step, the larger of both runs.

    On a busy host, where step times vary by more than :data:`BUSY_FRAC`, the noise between two runs is not known.
    """
    spreads = [metric.spread for metric in (before, after) if metric is not None and metric.spread is not None]
    old, new = (None if metric is None else metric.value for metric in (before, after))
    known = KINDS[name].exact or (bool(spreads) and not (KINDS[name].unit == "ns" and is_busy(before, after)))
    return Change((name,), "", old, new, max(spreads, default=None), known)


def is_busy(*times: Metric | None) -> bool:
    """Return whether one of the step times varies by more than :data:`BUSY_FRAC` from step to step."""
    return any(one is not None and (one.spread or 0.0) > BUSY_FRAC * one.value for one in times)


def sorted_changes(
    before: Parts, after: Parts, noise_of: Callable[[Key, tuple[float, float]], Noise]
) -> tuple[Change, ...]:
    """Return the keys with different sums, the largest change first. ``noise_of`` takes a key and both its sums."""
    found = []
    for key in before.keys() | after.keys():
        old, new = before.get(key, {}), after.get(key, {})
        part = max(old.keys() | new.keys(), key=lambda one: (abs(new.get(one, 0) - old.get(one, 0)), one))
        sums = sum(old.values()), sum(new.values())
        if sums[0] != sums[1]:
            noise = noise_of(key, sums)
            found.append(Change(key, part, *sums, noise.amount, noise.known))
    return tuple(sorted(found, key=lambda change: (-abs(change.delta or 0), change.key)))
