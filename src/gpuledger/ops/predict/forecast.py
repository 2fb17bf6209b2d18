"""Time and energy of a workload on a GPU, from measured operators, with predictions for the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuledger.ops.database.records import Environment
from gpuledger.ops.predict.choose import EnvironmentRecords
from gpuledger.ops.predict.predict import FittedPredictor
from gpuledger.ops.predict.roof import Roof
from gpuledger.ops.totals.sum import PREDICTED, OperatorLine, Sum, sum_up
from gpuledger.ops.workloads.workload import Workload


@dataclass(frozen=True)
class Forecast:
    """Time and energy of a workload on a GPU. The interval assumes that all errors have the same sign."""

    total: Sum
    low_ns: float | None
    high_ns: float | None
    low_j: float | None
    high_j: float | None
    warnings: tuple[str, ...]


def forecast(
    workload: Workload, predictor: FittedPredictor, shelf: EnvironmentRecords, roof: Roof, *, is_measured: bool
) -> Forecast:
    """Return the predicted time and energy of a workload on a GPU.

    Args:
        workload: The workload.
        predictor: For the operators that were not measured.
        shelf: The records of the GPU, or of another one if ``is_measured`` is False.
        roof: The GPU's roofline.
        is_measured: Whether the records are of this GPU, so that measured values are used.
    """
    records = shelf.records_for(workload) if is_measured else ()
    total = sum_up(workload, records, _environment(shelf.environment, roof, is_measured), predictor=predictor)
    predicted = [line for line in total.lines if line.source == PREDICTED]
    return Forecast(
        total,
        _end(total.lines, "time_low_ns", total.step_ns - total.busy_ns),
        _end(total.lines, "time_high_ns", total.step_ns - total.busy_ns),
        None if total.energy_j is None else _end(total.lines, "energy_low_j"),
        None if total.energy_j is None else _end(total.lines, "energy_high_j"),
        _warnings(predictor, predicted),
    )


def _environment(environment: Environment, roof: Roof, is_measured: bool) -> Environment:
    if is_measured:
        return environment
    flags = {"cache_bytes": roof.cache_bytes, "power_limit_w": roof.power_limit_w}
    return replace(environment, card=roof.card, driver=None, flags=flags)


def _end(lines: Sequence[OperatorLine], name: str, beside: float = 0.0) -> float | None:
    """Return the sum of all interval ends and of the overhead outside operators; None if one is unknown."""
    known = [line for line in lines if line.cost and (name.startswith("time") or line.cost.energy_j is not None)]
    ends = [(line.use.count, getattr(line.cost, name)) for line in known]
    return None if any(end is None for _, end in ends) else sum(count * end for count, end in ends) + beside


def _warnings(predictor: FittedPredictor, lines: Sequence[OperatorLine]) -> tuple[str, ...]:
    """Return warnings about operators outside the range of the examples, combined if equal."""
    keys = [line.use.key for line in lines]
    found = predictor.predictions(keys, [False] * len(keys))
    said = Counter((key.name, one.warning) for key, one in zip(keys, found, strict=True) if one.warning)
    return tuple(
        f"out of range: {name}: {warning}" + (f" ({count} operators)" if count > 1 else "")
        for (name, warning), count in said.items()
    )
