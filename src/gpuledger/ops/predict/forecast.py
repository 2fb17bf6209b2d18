"""A workload's cost on a GPU: from the database where it is measured there, else predicted, with its interval."""

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
    """A workload on a GPU. The ends are those of every operator at once: what is wrong is wrong in one direction."""

    total: Sum
    low_ns: float | None
    high_ns: float | None
    low_j: float | None
    high_j: float | None
    warnings: tuple[str, ...]


def forecast(
    workload: Workload, predictor: FittedPredictor, shelf: EnvironmentRecords, roof: Roof, *, is_measured: bool
) -> Forecast:
    """Return a workload's cost on a GPU.

    Args:
        workload: What runs.
        predictor: For the operators that were not measured.
        shelf: What the database holds of the GPU; of another one where ``is_measured`` is False.
        roof: The GPU's.
        is_measured: The records are of the GPU itself, and count.
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
    """Return the sum of all ends of intervals, and of what is beside operators; None where an end is not known."""
    known = [line for line in lines if line.cost and (name.startswith("time") or line.cost.energy_j is not None)]
    ends = [(line.use.count, getattr(line.cost, name)) for line in known]
    return None if any(end is None for _, end in ends) else sum(count * end for count, end in ends) + beside


def _warnings(predictor: FittedPredictor, lines: Sequence[OperatorLine]) -> tuple[str, ...]:
    """Return what lies outside what was learned, the operators that say the same together."""
    keys = [line.use.key for line in lines]
    found = predictor.predictions(keys, [False] * len(keys))
    said = Counter((key.name, one.warning) for key, one in zip(keys, found, strict=True) if one.warning)
    return tuple(
        f"out of range: {name}: {warning}" + (f" ({count} operators)" if count > 1 else "")
        for (name, warning), count in said.items()
    )
