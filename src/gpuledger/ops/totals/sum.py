"""Sum the time and energy of a workload from the database: each operator times its count. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.host_overhead import HostOverhead, host_overhead_of, host_step_ns
from gpuledger.ops.database.method import Mode, mode_weights
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.totals.cost import MEASURED, Cost, cost_of, mixed, with_power_of
from gpuledger.ops.totals.near_keys import MEASURED_AS
from gpuledger.ops.workloads.workload import Use, Workload
from gpuledger.units import counted

PREDICTED, UNKNOWN, FAILED = "predicted", "unknown", "failed"
NOT_ASKED = "not asked for"


class Predictor(Protocol):
    """Predicts the cost of operators missing from the database; see :mod:`gpuledger.ops.predict.predict`."""

    def costs(self, keys: Sequence[OperatorKey], hot: Sequence[bool]) -> list[Cost]:
        """Return the cost of one call of each operator."""


@dataclass(frozen=True)
class OperatorLine:
    """One distinct operator of a sum. Values are for all its calls; None if its cost is unknown."""

    use: Use
    cost: Cost | None
    source: str
    energy_source: str = UNKNOWN
    reason: str = ""

    @property
    def time_ns(self) -> float | None:
        """Return the time of all calls in ns."""
        return None if self.cost is None else self.use.count * self.cost.time_ns

    @property
    def energy_j(self) -> float | None:
        """Return the energy of all calls in J."""
        if self.cost is None or self.cost.energy_j is None:
            return None
        return self.use.count * self.cost.energy_j


@dataclass(frozen=True)
class Sum:
    """Time and energy of a workload.

    Attributes:
        busy_ns: Sum of the operators' times, ± ``busy_half_ns`` (95 %), which is None if one is unknown.
        queued_ns: The same for separately launched operators, with gaps between them; None on a CPU.
        host_ns: Host time of a step; None on a CPU. Measured on the model itself if ``is_host_measured``, otherwise the
            sum of the launches, modules and autograd, which leaves out the Python code of modules.
        around: Part of it for modules and autograd, on a CPU in addition to ``busy_ns``; None if unknown, or if only
            some operators were requested.
        step_ns: Time of a step: the longest of these, or more if the power limit applies.
        energy_j: Dynamic energy, and idle power times ``step_ns``; None if unknown.
        busy_energy_j: The same without waiting for launches.
        calls_frac: Share of the calls with a measured time.
        time_frac, energy_frac: Share of the sum's time and energy that is measured; the rest is predicted.
        is_capped: Whether the power limit increased ``step_ns``.
    """

    workload: Workload
    environment: Environment | None
    lines: tuple[OperatorLine, ...]
    busy_ns: float
    busy_half_ns: float | None
    queued_ns: float | None
    host_ns: float | None
    step_ns: float
    energy_j: float | None
    energy_half_j: float | None
    busy_energy_j: float | None
    calls_frac: float
    time_frac: float | None
    energy_frac: float | None
    is_capped: bool
    notes: tuple[str, ...]
    around: HostOverhead | None
    is_host_measured: bool

    @property
    def gpu_ns(self) -> float:
        """Return the GPU's time of an eager step in ns, without waiting for the CPU."""
        return self.step_ns if self.is_capped else max(self.busy_ns, self.queued_ns or 0.0)


@dataclass(frozen=True)
class Waiting:
    """What determines how long the GPU waits for the CPU, and its power then; None if unknown.

    Attributes:
        host_ns: Predicted CPU time of a step, for models on which it was not measured.
        idle_w: The GPU's power while it waits, if no operator's record has it.
    """

    host_ns: float | None = None
    idle_w: float | None = None


UNPREDICTED = Waiting()


@dataclass(frozen=True)
class _Host:
    """A step's host time as measured on the model itself or predicted, and of its modules and autograd.

    All are None if unknown.
    """

    measured_ns: float | None
    predicted_ns: float | None
    around: HostOverhead | None

    def time_ns(self, lines: Sequence[OperatorLine]) -> float | None:
        """Return the host time of a step in ns: measured, predicted, or that of the launches and around them."""
        costs = [(line.use.count, line.cost.host_ns) for line in lines if line.cost is not None]
        launches = [count * host_ns for count, host_ns in costs if host_ns is not None]
        known_ns = self.predicted_ns if self.measured_ns is None else self.measured_ns
        if not launches or known_ns is not None:
            return known_ns
        return math.fsum(launches) + (0.0 if self.around is None else self.around.time_ns)


def sum_up(
    workload: Workload,
    records: Sequence[Record],
    environment: Environment | None,
    *,
    predictor: Predictor | None = None,
    energy_predictor: Predictor | None = None,
    only: Collection[str] | None = None,
    waiting: Waiting = UNPREDICTED,
) -> Sum:
    """Return time and energy of a workload.

    Args:
        workload: The workload.
        records: Records of one environment. The newest of an operator and mode is used.
        environment: Their environment, with cache size and power limit in its flags.
        predictor: Predicts missing operators. Without it, they are counted but not summed.
        energy_predictor: Predicts the energy of operators with a measured time only; by default ``predictor``.
        only: Digests of the operators to sum; None for all.
        waiting: How long the GPU waits for the CPU, if it is predicted.
    """
    flags = dict(environment.flags) if environment is not None else {}
    cache_bytes = int(flags.get("cache_bytes") or 0)
    newest = _newest(records)
    lines = [_line(use, newest, cache_bytes, only) for use in workload.uses]
    if predictor is not None:
        lines = _predicted(lines, predictor, cache_bytes, lambda line: line.cost is None)
    powers = energy_predictor or predictor
    if powers is not None:
        lines = _predicted(
            lines, powers, cache_bytes, lambda line: line.cost is not None and line.cost.energy_j is None
        )
    around = host_overhead_of(workload.settings, records) if only is None else None
    measured_ns = host_step_ns(workload.settings, workload.mode, records) if only is None else None
    host = _Host(measured_ns, waiting.host_ns, around)
    return _total(workload, environment, lines, (flags.get("power_limit_w"), waiting.idle_w), host)


def _newest(records: Sequence[Record]) -> dict[tuple[str, str], Record]:
    """Return the newest record by operator and mode; one with energy is preferred to a newer one without."""
    newest: dict[tuple[str, str], Record] = {}
    for record in sorted(records, key=lambda record: (record.energy_median_j is not None, record.measured_ns)):
        mode = (record.key_digest, str(record.method.get("mode")))
        kept = newest.get(mode)
        if kept is None or kept.status == "failed" or record.status == "ok":
            newest[mode] = record
    return newest


def _line(
    use: Use, newest: Mapping[tuple[str, str], Record], cache_bytes: int, only: Collection[str] | None
) -> OperatorLine:
    digest = use.key.digest
    if only is not None and digest not in only:
        return OperatorLine(use, None, UNKNOWN, reason=NOT_ASKED)
    held = {mode: newest[digest, mode.value] for mode in Mode if (digest, mode.value) in newest}
    if not held:
        return OperatorLine(use, None, UNKNOWN, reason="not in the database")
    known = {mode: cost_of(record) for mode, record in held.items() if record.status == "ok"}
    costs = {mode: cost for mode, cost in known.items() if cost is not None}
    if not costs:
        return OperatorLine(use, None, FAILED, reason=next(iter(held.values())).reason)
    weights = {mode: weight for mode, weight in mode_weights(use.reuse_bytes, cache_bytes).items() if mode in costs}
    if not weights:  # measured in the other mode only: use that
        weights = dict.fromkeys(costs, 1.0)
    cost = mixed([(costs[mode], weight / sum(weights.values())) for mode, weight in weights.items()])
    otherwise = " and ".join(dict.fromkeys(str(held[mode].method.get(MEASURED_AS) or "") for mode in weights)).strip()
    return OperatorLine(use, cost, MEASURED, UNKNOWN if cost.energy_j is None else MEASURED, otherwise)


def _predicted(
    lines: Sequence[OperatorLine], predictor: Predictor, cache_bytes: int, lacks: Callable[[OperatorLine], bool]
) -> list[OperatorLine]:
    """Return the lines with missing values predicted: the whole cost, or the energy if the time is known."""
    asked = [place for place, line in enumerate(lines) if lacks(line) and line.reason != NOT_ASKED]
    keys = [lines[place].use.key for place in asked]
    hot = [mode_weights(lines[place].use.reuse_bytes, cache_bytes).get(Mode.HOT, 0.0) > 0.5 for place in asked]
    completed = list(lines)
    for place, cost in zip(asked, predictor.costs(keys, hot), strict=True):
        line = lines[place]
        energy_source = UNKNOWN if cost.energy_j is None else PREDICTED
        if line.cost is None:
            completed[place] = replace(line, cost=cost, source=PREDICTED, energy_source=energy_source)
        elif cost.energy_j is not None:
            completed[place] = replace(line, cost=with_power_of(line.cost, cost), energy_source=PREDICTED)
    return completed


def _total(
    workload: Workload,
    environment: Environment | None,
    lines: Sequence[OperatorLine],
    powers_w: tuple[float | None, float | None],
    host: _Host,
) -> Sum:
    known = [line for line in lines if line.cost is not None]
    busy_ns = _time_ns(known)
    around_ns = 0.0 if host.around is None else host.around.time_ns
    host_ns = host.time_ns(known)
    queued_ns = _queued_ns(known)
    longest_ns = busy_ns + around_ns if host_ns is None else max(busy_ns if queued_ns is None else queued_ns, host_ns)
    energy_j, energy_half_j, step_ns, is_capped = _energy(known, longest_ns, *powers_w)
    measured_j = _energy_j(line for line in known if line.energy_source == MEASURED)
    return Sum(
        workload,
        environment,
        tuple(lines),
        busy_ns,
        half_interval(known, "time"),
        queued_ns,
        host_ns,
        step_ns,
        energy_j,
        energy_half_j,
        _energy(known, busy_ns, *powers_w)[0],
        calls_frac=share(sum(line.use.count for line in known if line.source == MEASURED), workload.calls) or 0.0,
        time_frac=share(_time_ns(line for line in known if line.source == MEASURED), busy_ns),
        energy_frac=share(measured_j, _energy_j(known)),
        is_capped=is_capped,
        notes=_notes(lines, is_capped=is_capped),
        around=host.around,
        is_host_measured=host.measured_ns is not None,
    )


def _time_ns(lines: Iterable[OperatorLine]) -> float:
    """Return the time of all calls of the operators with a known time."""
    return math.fsum(line.time_ns for line in lines if line.time_ns is not None)


def _energy_j(lines: Iterable[OperatorLine]) -> float:
    """Return the energy of all calls of the operators with a known energy."""
    return math.fsum(line.energy_j for line in lines if line.energy_j is not None)


def _queued_ns(lines: Sequence[OperatorLine]) -> float | None:
    """Return the time of separately launched calls in ns. An unmeasured gap is the median of the others.

    At least the time in a graph: a separate call can reuse the last output's memory, which is in the cache.
    """
    costs = [(line.use.count, line.cost) for line in lines if line.cost is not None]
    gaps = [max(cost.queued_ns - cost.time_ns, 0.0) for _, cost in costs if cost.queued_ns is not None]
    if not gaps:
        return None
    gap_ns = statistics.median(gaps)
    return math.fsum(count * max(cost.queued_ns or cost.time_ns + gap_ns, cost.time_ns) for count, cost in costs)


def share(part: float, whole: float) -> float | None:
    """Return ``part / whole``; None if the whole is 0."""
    return part / whole if whole else None


def half_interval(lines: Sequence[OperatorLine], quantity: str) -> float | None:
    """Return half the interval of a sum, in ns or J; None if that of a line is unknown.

    Calls of one operator have the same error, because it was measured once. Errors of different ones are independent.
    """
    low, high = ("time_low_ns", "time_high_ns") if quantity == "time" else ("energy_low_j", "energy_high_j")
    halves = []
    for line in lines:
        ends = getattr(line.cost, low), getattr(line.cost, high)
        if None in ends:
            return None
        halves.append(line.use.count * (ends[1] - ends[0]) / 2)
    return math.sqrt(math.fsum(half * half for half in halves))


def _energy(
    lines: Sequence[OperatorLine], step_ns: float, power_limit_w: float | None, idle_w: float | None
) -> tuple[float | None, float | None, float, bool]:
    """Return energy, half its interval, the step time, and whether the power limit increased it.

    Idle power applies to the whole step, including gaps. Above the power limit, the clock is lowered, and the same
    dynamic energy is used over a longer time.
    """
    with_energy = [line for line in lines if line.energy_j is not None]
    if not with_energy:
        return None, None, step_ns, False
    half_j = half_interval(with_energy, "energy")
    based = [
        (line.use.count * line.cost.time_ns, line.cost.base_w)
        for line in with_energy
        if line.cost is not None and line.cost.base_w is not None
    ]
    based_ns = math.fsum(time_ns for time_ns, _ in based)
    counted_j = _energy_j(with_energy)
    base_w = math.fsum(time_ns * power_w for time_ns, power_w in based) / based_ns if based_ns else idle_w
    if base_w is None:
        return counted_j, half_j, step_ns, False
    dynamic_j = counted_j - base_w * _time_ns(with_energy) / 1e9
    energy_j = dynamic_j + base_w * step_ns / 1e9
    if power_limit_w and power_limit_w > base_w and energy_j / (step_ns / 1e9) > power_limit_w:
        stretched_ns = dynamic_j / (power_limit_w - base_w) * 1e9
        return power_limit_w * stretched_ns / 1e9, half_j, stretched_ns, True
    return energy_j, half_j, step_ns, False


def _notes(lines: Sequence[OperatorLine], *, is_capped: bool) -> tuple[str, ...]:
    failed = [line for line in lines if line.source == FAILED]
    unknown = [line for line in lines if line.source == UNKNOWN]
    others = [line for line in unknown if line.reason == NOT_ASKED]
    lacking = [line for line in unknown if line.reason != NOT_ASKED]
    predicted = [line for line in lines if line.source == PREDICTED]
    kinds = (failed, "could not be measured"), (lacking, "not measured"), (others, NOT_ASKED), (predicted, "predicted")
    notes = [f"{_counted(found)} {text}" for found, text in kinds if found]
    measured = [line for line in lines if line.source == MEASURED]
    modes = dict.fromkeys(line.reason for line in measured if line.reason)
    notes += [f"{_counted([line for line in measured if line.reason == words])} measured {words}" for words in modes]
    guessed = [line for line in measured if line.energy_source == PREDICTED]
    if guessed:
        notes.append(f"the energy of {_counted(guessed)} is predicted")
    if is_capped:
        notes.append("times are longer than measured, because the whole would exceed the GPU's power limit")
    return tuple(notes)


def _counted(lines: Sequence[OperatorLine]) -> str:
    calls = counted(sum(line.use.count for line in lines), "call")
    return f"{counted(len(lines), 'operator')} ({calls})"
