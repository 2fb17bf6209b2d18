"""The cost of one call of an operator: from a record, mixed from two modes, and with a predicted power. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuledger.ops.database.records import Record

MEASURED = "measured"
"""The source of a cost or an energy that a record has."""


@dataclass(frozen=True)
class Cost:
    """Cost of one call: time in ns and energy in J with their intervals; None if not measured.

    ``base_w`` is the idle GPU's power, ``host_ns`` the launch on the host, ``queued_ns`` the time of a separate launch.
    """

    time_ns: float
    time_low_ns: float | None
    time_high_ns: float | None
    energy_j: float | None = None
    energy_low_j: float | None = None
    energy_high_j: float | None = None
    base_w: float | None = None
    host_ns: float | None = None
    queued_ns: float | None = None
    source: str = MEASURED

    def holds(self, time_ns: float) -> bool:
        """Return whether the interval is known and contains a time."""
        low_ns, high_ns = self.time_low_ns, self.time_high_ns
        return low_ns is not None and high_ns is not None and low_ns <= time_ns <= high_ns


def cost_of(record: Record) -> Cost | None:
    """Return the cost of one call in a record; None if its time is unknown."""
    if record.time_median_ns is None:
        return None
    summary = next((block for block in record.blocks if block.get("kind") == "summary"), {})
    return Cost(
        record.time_median_ns,
        record.time_low_ns,
        record.time_high_ns,
        *_burst_energy(record),
        base_w=record.base_w,
        host_ns=summary.get("host_ns"),
        queued_ns=summary.get("queued_ns"),
    )


def _burst_energy(record: Record) -> tuple[float | None, float | None, float | None]:
    """Return one call's energy for the duration in a burst. Under sustained load, a call can take longer.

    Dynamic energy is that of the load; idle power is multiplied by the call's time in a burst.
    """
    energies = (record.energy_median_j, record.energy_low_j, record.energy_high_j)
    windows = [block["call_ns"] for block in record.blocks if block.get("kind") == "energy"]
    if record.base_w is None or record.time_median_ns is None or not windows:
        return energies
    longer_ns = sum(windows) / len(windows) - record.time_median_ns
    moved_j = record.base_w * longer_ns / 1e9
    middle, low, high = (None if value is None else max(value - moved_j, 0.0) for value in energies)
    return middle, low, high


def mixed(parts: Sequence[tuple[Cost, float]]) -> Cost:
    """Return the weighted mean of costs. A missing energy is computed from the other's mean power."""
    power_w = next((cost.energy_j / cost.time_ns for cost, _ in parts if cost.energy_j is not None), None)
    complete = [(_with_energy(cost, power_w), weight) for cost, weight in parts]
    mixed = replace(
        complete[0][0],
        time_ns=sum(cost.time_ns * weight for cost, weight in complete),
        time_low_ns=_weighted([(cost.time_low_ns, weight) for cost, weight in complete]),
        time_high_ns=_weighted([(cost.time_high_ns, weight) for cost, weight in complete]),
        queued_ns=_weighted([(cost.queued_ns, weight) for cost, weight in complete]),
    )
    return replace(
        mixed,
        energy_j=_weighted([(cost.energy_j, weight) for cost, weight in complete]),
        energy_low_j=_weighted([(cost.energy_low_j, weight) for cost, weight in complete]),
        energy_high_j=_weighted([(cost.energy_high_j, weight) for cost, weight in complete]),
    )


def _weighted(parts: Sequence[tuple[float | None, float]]) -> float | None:
    """Return a weighted sum; None if a part is unknown."""
    known = [value * weight for value, weight in parts if value is not None]
    return sum(known) if len(known) == len(parts) else None


def _with_energy(cost: Cost, joules_per_ns: float | None) -> Cost:
    if cost.energy_j is not None or joules_per_ns is None:
        return cost
    low, high = (None if ns is None else joules_per_ns * ns for ns in (cost.time_low_ns, cost.time_high_ns))
    return replace(cost, energy_j=joules_per_ns * cost.time_ns, energy_low_j=low, energy_high_j=high)


def with_power_of(cost: Cost, predicted: Cost) -> Cost:
    """Return a cost with its measured time and the predicted power, with the interval of the prediction."""
    assert predicted.energy_j is not None
    middle = predicted.energy_j / predicted.time_ns
    ends = ((predicted.energy_low_j, predicted.time_low_ns), (predicted.energy_high_j, predicted.time_high_ns))
    low, high = (energy_j / time_ns if energy_j is not None and time_ns else middle for energy_j, time_ns in ends)
    return replace(
        cost, energy_j=middle * cost.time_ns, energy_low_j=low * cost.time_ns, energy_high_j=high * cost.time_ns
    )
