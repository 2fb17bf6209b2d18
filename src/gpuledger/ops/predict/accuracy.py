"""Accuracy of predictions, for operators that were not part of the fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpuledger.analyze.operator_work.formulas import work_of
from gpuledger.errors import EmptyRunError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.predict.fit import LEAST_EXAMPLES, Example, fit, folds_of, group_numbers
from gpuledger.ops.predict.predict import FittedPredictor
from gpuledger.ops.predict.roof import Roof
from gpuledger.ops.totals.cost import Cost
from gpuledger.ops.workloads.workload import Workload
from gpuledger.units import counted

FOLDS = 5
BEYOND_FRAC = 0.2
"""Share of the operators, those with the longest roofline time, that test predictions beyond the range."""
STEPS = (1.0, 2.0, 4.0, 8.0, float("inf"))
"""Limits of classes beyond the range: roofline time relative to the largest operator of the fit."""


@dataclass(frozen=True)
class Errors:
    """Relative errors of predictions. ``inside_frac`` of the measurements are within the 90 % interval."""

    name: str
    count: int
    mean_frac: float
    median_frac: float
    p90_frac: float
    worst_frac: float
    inside_frac: float
    power_mean_frac: float | None


@dataclass(frozen=True)
class HeldOut:
    """Relative error of a workload's predicted sum, with none of its operators in the fit."""

    name: str
    mode: str
    time_frac: float
    energy_frac: float | None
    covered_frac: float


@dataclass(frozen=True)
class Accuracy:
    """Errors of predictions from a database.

    Attributes:
        unseen: Errors of operators with a held-out shape family; ``by_type`` by operator name, ``by_part`` by the
            requested parts.
        beyond: Errors of the largest operators, predicted from the smaller ones; None if there are too few.
        beyond_by_size: The same by size.
        models: Errors of whole workloads.
    """

    card: str
    examples: int
    groups: int
    unseen: Errors
    by_type: tuple[Errors, ...]
    beyond: Errors | None
    models: tuple[HeldOut, ...]
    by_part: tuple[Errors, ...] = ()
    beyond_by_size: tuple[Errors, ...] = ()


def validate(
    examples: Sequence[Example],
    roof: Roof,
    workloads: Sequence[Workload] = (),
    folds: int | None = None,
    parts: Mapping[str, Collection[str]] | None = None,
) -> Accuracy:
    """Return the errors of predictions for operators that were not part of the fit.

    Args:
        examples: All measured operators.
        roof: The GPU's roofline.
        workloads: Each is held out in turn, with every shape family that it uses.
        folds: Number of folds of the shape families; None for :data:`FOLDS`.
        parts: Name -> digests of operators, such as those of a model, to report errors for.

    Raises:
        EmptyRunError: too few examples.
        UsageError: scikit-learn is not installed.
    """
    groups = group_numbers(examples)
    places = folds_of(groups, folds or FOLDS)
    predicted: dict[int, Cost] = {}
    for fold in range(int(places.max(initial=-1)) + 1):
        inside = [one for one, place in zip(examples, places, strict=True) if place != fold]
        held = [number for number, place in enumerate(places) if place == fold]
        if len(inside) >= LEAST_EXAMPLES:
            predicted.update(zip(held, _costs(inside, [examples[number] for number in held], roof), strict=True))
    pairs = [(examples[number], cost) for number, cost in sorted(predicted.items())]
    if not pairs:
        raise EmptyRunError(
            f"the database has {counted(len(examples), 'measured operator')}, but at least {LEAST_EXAMPLES} must "
            "remain when some are held out",
            hint="Measure more operators with: gpuledger ops measure",
        )
    names = dict.fromkeys(one.key.name for one, _ in pairs)
    by_type = [_errors(name, [pair for pair in pairs if pair[0].key.name == name]) for name in names]
    beyond, beyond_by_size = _beyond(examples, roof)
    return Accuracy(
        roof.card,
        len(examples),
        len(set(groups.tolist())),
        _errors("unseen operators", pairs),
        tuple(sorted(by_type, key=lambda errors: -errors.count)),
        beyond,
        tuple(one for workload in workloads if (one := hold_out(workload, examples, roof)) is not None),
        tuple(_part(name, digests, pairs) for name, digests in (parts or {}).items()),
        beyond_by_size,
    )


def _costs(inside: Sequence[Example], asked: Sequence[Example], roof: Roof) -> list[Cost]:
    model = fit(inside, roof)
    return FittedPredictor(model).costs([one.key for one in asked], [one.is_hot for one in asked])


def _part(name: str, digests: Collection[str], pairs: Sequence[tuple[Example, Cost]]) -> Errors:
    return _errors(name, [pair for pair in pairs if pair[0].key.digest in digests])


def _errors(name: str, pairs: Sequence[tuple[Example, Cost]]) -> Errors:
    away = np.array([abs(cost.time_ns / one.time_ns - 1) for one, cost in pairs])
    inside = [cost.holds(one.time_ns) for one, cost in pairs]
    powers = [
        abs(cost.energy_j / cost.time_ns * 1e9 / one.power_w - 1)
        for one, cost in pairs
        if one.power_w and cost.energy_j is not None
    ]
    return Errors(
        name,
        len(pairs),
        float(away.mean()),
        float(np.median(away)),
        float(np.quantile(away, 0.9)),
        float(away.max()),
        float(np.mean(inside)),
        float(np.mean(powers)) if powers else None,
    )


def _beyond(examples: Sequence[Example], roof: Roof) -> tuple[Errors | None, tuple[Errors, ...]]:
    """Return the errors of the operators with the longest roofline time, in total and by size."""
    ordered = sorted(examples, key=lambda one: _least_ns(one, roof))
    cut = int(len(ordered) * (1 - BEYOND_FRAC))
    inside, beyond = ordered[:cut], ordered[cut:]
    if len(inside) < LEAST_EXAMPLES or not beyond:
        return None, ()
    pairs = list(zip(beyond, _costs(inside, beyond, roof), strict=True))
    times = np.array([_least_ns(one, roof) for one in beyond]) / _least_ns(inside[-1], roof)
    steps = []
    for low, high in pairwise(STEPS):
        some = [pair for pair, beyond_times in zip(pairs, times.tolist(), strict=True) if low <= beyond_times < high]
        name = f"{low:.0f} times the range and more" if np.isinf(high) else f"{low:.0f} to {high:.0f} times the range"
        steps += [_errors(name, some)] if some else []
    return _errors("beyond the range", pairs), tuple(steps)


def _least_ns(one: Example, roof: Roof) -> float:
    return max(roof.least_ns(one.key, work_of(one.key)), 1.0)  # a view takes no time


def hold_out(workload: Workload, examples: Sequence[Example], roof: Roof) -> HeldOut | None:
    """Return the error of a workload's predicted sum; None if too few operators were measured.

    Both sums are over the measured operators only, so that the coverage has no effect.
    """
    counts = {use.key.digest: use.count for use in workload.uses}
    own = _one_each(examples, counts)
    families = {one.group for one in own.values()}
    inside = [one for one in examples if one.group not in families]
    if not own or len(inside) < LEAST_EXAMPLES:
        return None
    held = list(own.values())
    costs = _costs(inside, held, roof)
    weights = [counts[one.key.digest] for one in held]
    measured_ns = sum(weight * one.time_ns for weight, one in zip(weights, held, strict=True))
    predicted_ns = sum(weight * cost.time_ns for weight, cost in zip(weights, costs, strict=True))
    return HeldOut(
        workload.name,
        workload.mode,
        predicted_ns / measured_ns - 1,
        _energy_frac(weights, held, costs),
        sum(weights) / workload.calls,
    )


def _energy_frac(weights: Sequence[int], held: Sequence[Example], costs: Sequence[Cost]) -> float | None:
    pairs = [
        (weight * one.power_w * one.time_ns / 1e9, weight * cost.energy_j)
        for weight, one, cost in zip(weights, held, costs, strict=True)
        if one.power_w and cost.energy_j is not None
    ]
    return sum(found for _, found in pairs) / sum(real for real, _ in pairs) - 1 if pairs else None


def _one_each(examples: Sequence[Example], counts: Mapping[str, int]) -> dict[OperatorKey, Example]:
    """Return a workload's measured operators, each in one mode."""
    return {one.key: one for one in examples if one.key.digest in counts}
