"""Compare sums of operators with whole models. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gpuledger.ops.database.records import Record
from gpuledger.ops.database.statistics import Spread
from gpuledger.ops.totals.sum import Sum


@dataclass(frozen=True)
class Recorded:
    """A quantity as recorded by another tool; the interval is None if unknown."""

    median: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Whole:
    """One eager step of a whole model; energies are None if not measured.

    ``throttled`` is the number of throttled blocks; None if unknown.

    ``graph_time_ns`` and ``graph_energy_j`` are those of the step as a CUDA graph, without launch overhead; None
    without a graph, for the reason ``graph_why``.

    ``host_ns`` is the host time of a step, measured in turn with its time; None on a CPU and for recorded models.

    ``energy_step_ns`` is the time of a step while the energy was measured: the speed of a shared host changes, so a
    model that waits for the host can have been faster or slower then. None if unknown.
    """

    time_ns: Spread | Recorded
    energy_j: Spread | Recorded | None
    base_w: float | None
    throttled: int | None
    graph_time_ns: Spread | None = None
    graph_energy_j: Spread | None = None
    graph_why: str = ""
    host_ns: Spread | None = None
    energy_step_ns: float | None = None


def whole_of_record(record: Record) -> Whole | None:
    """Return the whole model of a record; None if its time is unknown."""
    if record.time_median_ns is None:
        return None
    energy_j = None
    if record.energy_median_j is not None:
        energy_j = Recorded(record.energy_median_j, record.energy_low_j, record.energy_high_j)
    time_ns = Recorded(record.time_median_ns, record.time_low_ns, record.time_high_ns)
    return Whole(time_ns, energy_j, record.base_w, None, graph_why="recorded by another tool")


@dataclass(frozen=True)
class Pair:
    """One workload: sum of operators, and whole model. Shares are ``sum / whole``; None if one is missing."""

    name: str
    mode: str
    sum: Sum
    whole: Whole

    @property
    def time_frac(self) -> float:
        """Return the summed time as a share of the whole's."""
        return self.sum.step_ns / self.whole.time_ns.median

    @property
    def energy_frac(self) -> float | None:
        """Return the summed energy as a share of the whole's, at the step time of the energy measurement if known."""
        if self.sum.energy_j is None or self.whole.energy_j is None:
            return None
        return (self.sum.energy_j + self.waiting_j) / self.whole.energy_j.median

    @property
    def waiting_j(self) -> float:
        """Return what the idle power adds because the whole's steps were longer while the energy was measured.

        It is negative if they were shorter, and 0 if their time is unknown. No step is shorter than its operators.
        """
        total = self.sum
        if total.energy_j is None or total.busy_energy_j is None or self.whole.energy_step_ns is None:
            return 0.0
        waited_ns = total.step_ns - total.busy_ns
        if waited_ns <= 0 or total.is_capped:
            return 0.0
        idle_j_per_ns = (total.energy_j - total.busy_energy_j) / waited_ns
        return idle_j_per_ns * (max(self.whole.energy_step_ns, total.busy_ns) - total.step_ns)

    @property
    def busy_time_frac(self) -> float | None:
        """Return the operators' time as a share of the whole's without launches."""
        return None if self.whole.graph_time_ns is None else self.sum.busy_ns / self.whole.graph_time_ns.median

    @property
    def busy_energy_frac(self) -> float | None:
        """Return the operators' energy as a share of the whole's without launches."""
        if self.sum.busy_energy_j is None or self.whole.graph_energy_j is None:
            return None
        return self.sum.busy_energy_j / self.whole.graph_energy_j.median


@dataclass(frozen=True)
class SumErrors:
    """Errors of several pairs: mean and maximum of ``|sum / whole - 1|``, and its signed mean."""

    pairs: int
    mean_frac: float
    worst_frac: float
    bias_frac: float


def errors_of(shares: Sequence[float]) -> SumErrors | None:
    """Return the errors of shares; None if there are none."""
    if not shares:
        return None
    away = [share - 1 for share in shares]
    return SumErrors(len(shares), fmean(map(abs, away)), max(map(abs, away)), fmean(away))


def time_errors(pairs: Sequence[Pair]) -> SumErrors | None:
    """Return the errors of the times."""
    return errors_of([pair.time_frac for pair in pairs])


def busy_time_errors(pairs: Sequence[Pair]) -> SumErrors | None:
    """Return the errors of the times without launches, of the pairs that have them."""
    return errors_of([pair.busy_time_frac for pair in pairs if pair.busy_time_frac is not None])


def busy_energy_errors(pairs: Sequence[Pair]) -> SumErrors | None:
    """Return the errors of the energies without launches, of the pairs that have them."""
    return errors_of([pair.busy_energy_frac for pair in pairs if pair.busy_energy_frac is not None])


def energy_errors(pairs: Sequence[Pair]) -> SumErrors | None:
    """Return the errors of the energies, of the pairs that have both."""
    return errors_of([pair.energy_frac for pair in pairs if pair.energy_frac is not None])


def pairs_document(pairs: Sequence[Pair], environment: dict[str, Any]) -> dict[str, Any]:
    """Return the pairs and their errors as a JSON value."""
    found = {
        "time": time_errors(pairs),
        "energy": energy_errors(pairs),
        "busy_time": busy_time_errors(pairs),
        "busy_energy": busy_energy_errors(pairs),
    }
    return {
        "environment": environment,
        "pairs": [_pair_document(pair) for pair in pairs],
        "errors": {what: None if errors is None else vars(errors) for what, errors in found.items()},
    }


def _pair_document(pair: Pair) -> dict[str, Any]:
    total, whole = pair.sum, pair.whole
    return {
        "workload": pair.name,
        "mode": pair.mode,
        "sum_ns": total.step_ns,
        "sum_half_interval_ns": total.busy_half_ns,
        "whole_ns": whole.time_ns.median,
        "whole_low_ns": whole.time_ns.low,
        "whole_high_ns": whole.time_ns.high,
        "time_frac": pair.time_frac,
        "sum_j": total.energy_j,
        "whole_j": None if whole.energy_j is None else whole.energy_j.median,
        "energy_frac": pair.energy_frac,
        "busy_ns": total.busy_ns,
        "queued_ns": total.queued_ns,
        "host_ns": total.host_ns,
        "modules_and_autograd_ns": None if total.around is None else total.around.time_ns,
        "graph_ns": None if whole.graph_time_ns is None else whole.graph_time_ns.median,
        "busy_time_frac": pair.busy_time_frac,
        "busy_j": total.busy_energy_j,
        "graph_j": None if whole.graph_energy_j is None else whole.graph_energy_j.median,
        "busy_energy_frac": pair.busy_energy_frac,
        "no_graph": whole.graph_why,
        **{"is_host_measured": total.is_host_measured},
        "energy_step_ns": whole.energy_step_ns,
        "base_w": whole.base_w,
        "calls_frac": total.calls_frac,
        "throttled_blocks": whole.throttled,
        "notes": list(total.notes),
    }
