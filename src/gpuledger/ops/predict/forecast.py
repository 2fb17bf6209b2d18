"""Time and energy of a workload on a GPU, from measured operators, with predictions for the others."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpuledger.ops.database.records import Environment
from gpuledger.ops.predict.choose import EnvironmentRecords, is_gpu
from gpuledger.ops.predict.predict import FittedPredictor
from gpuledger.ops.predict.roof import Roof
from gpuledger.ops.totals.predicted_host import HostTime, predicted_host
from gpuledger.ops.totals.sum import PREDICTED, OperatorLine, Sum, Waiting, sum_up
from gpuledger.ops.workloads.workload import Workload

HostSource = Literal["measured", "predicted", "launches"]
"""Where a CPU time is from: the model itself, a prediction, or the sum of launches, without Python code of modules."""


@dataclass(frozen=True)
class Forecast:
    """Time and energy of a workload on a GPU. The intervals assume that all errors have the same sign.

    Attributes:
        total: The sum. Its ``gpu_ns`` is the GPU's time, and its ``step_ns`` that of an eager step.
        low_ns, high_ns: Interval of the GPU's time.
        host: CPU time of an eager step; None if unknown, and on a CPU.
        host_source: Where it is from.
    """

    total: Sum
    low_ns: float | None
    high_ns: float | None
    low_j: float | None
    high_j: float | None
    host: HostTime | None
    host_source: HostSource | None
    warnings: tuple[str, ...]

    @property
    def step_low_ns(self) -> float | None:
        """Return the lower end of the interval of an eager step, in ns."""
        return self._step_end(self.low_ns, None if self.host is None else self.host.low_ns)

    @property
    def step_high_ns(self) -> float | None:
        """Return the upper end of the interval of an eager step, in ns."""
        return self._step_end(self.high_ns, None if self.host is None else self.host.high_ns)

    @property
    def is_limited_by_cpu(self) -> bool:
        """Return whether the CPU needs longer for an eager step than the GPU."""
        return self.host is not None and self.host.time_ns > self.total.gpu_ns

    def _step_end(self, gpu_ns: float | None, host_ns: float | None) -> float | None:
        """Return the end for both: the larger one. A CPU time without an interval counts as it is."""
        if self.host is None or gpu_ns is None:
            return gpu_ns
        return max(gpu_ns, self.host.time_ns if host_ns is None else host_ns)


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
    host = predicted_host(workload) if is_gpu(shelf.environment) else None
    waiting = Waiting(None if host is None else host.time_ns, _idle_w(shelf) if is_measured else None)
    environment = _environment(shelf.environment, roof, is_measured)
    total = sum_up(workload, records, environment, predictor=predictor, waiting=waiting)
    predicted = [line for line in total.lines if line.source == PREDICTED]
    idle_j = _idle_j(total)
    return Forecast(
        total,
        _end(total.lines, "time_low_ns", total.gpu_ns - total.busy_ns),
        _end(total.lines, "time_high_ns", total.gpu_ns - total.busy_ns),
        None if idle_j is None else _end(total.lines, "energy_low_j", idle_j),
        None if idle_j is None else _end(total.lines, "energy_high_j", idle_j),
        *_host(total, host),
        _warnings(predictor, predicted),
    )


def _host(total: Sum, predicted: HostTime | None) -> tuple[HostTime | None, HostSource | None]:
    """Return the CPU time of a step, and where it is from."""
    if total.host_ns is None:
        return None, None
    if predicted is not None and not total.is_host_measured:
        return predicted, "predicted"
    return HostTime(total.host_ns, None, None), "measured" if total.is_host_measured else "launches"


def _idle_w(shelf: EnvironmentRecords) -> float | None:
    """Return the power of the idle GPU: the median of the records; None if none has it."""
    powers_w = [record.base_w for record in shelf.records if record.base_w is not None]
    return statistics.median(powers_w) if powers_w else None


def _idle_j(total: Sum) -> float | None:
    """Return the part of the energy that is not of operators: idle power while the GPU waits; None without energies."""
    if total.energy_j is None:
        return None
    return total.energy_j - math.fsum(line.energy_j for line in total.lines if line.energy_j is not None)


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
