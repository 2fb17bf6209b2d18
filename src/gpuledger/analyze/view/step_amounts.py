"""Time and energy of one step by module and phase, and the same step in parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.account_series import OUTSIDE
from gpuledger.analyze.step.energy import IDLE

if TYPE_CHECKING:
    from gpuledger.analyze.step.energy import EnergyBreakdown
    from gpuledger.analyze.step.step_parts import StepParts
    from gpuledger.analyze.step.times import TimeBreakdown
    from gpuledger.analyze.view.report_tree import Module

NO_PHASE = "between"


@dataclass(frozen=True)
class Amount:
    """Time or energy of one module in one phase of a step, in ns or J; ``uncertainty`` is None if unknown.

    ``module`` is "" outside modules and while idle.
    """

    module: str
    phase: str
    amount: float
    uncertainty: float | None = None


@dataclass(frozen=True)
class StepBar:
    """A step split into parts: (phase or kind, amount). ``whole`` is their sum, or the step that contains them.

    ``currency`` is ``time`` or ``energy``. ``uncertainty`` is that of ``whole``.
    """

    currency: str
    title: str
    unit: str
    whole: float
    parts: tuple[tuple[str, float], ...]
    note: str
    uncertainty: float | None = None


def time_amounts(times: TimeBreakdown) -> tuple[Amount, ...]:
    """Return a step's time in ns by module and phase, including idle time."""
    spent = tuple(Amount(one.module, one.phase, one.time_ns) for one in times.accounts)
    idle = (Amount("", IDLE, times.idle_ns),) if times.idle_ns is not None and times.idle_ns > 0 else ()
    return spent + idle


def time_bars(times: TimeBreakdown, parts: StepParts | None) -> tuple[StepBar, ...]:
    """Return an unprofiled step split into its parts and, on a GPU, its work split by kind.

    Without an unprofiled step, the work of a profiled step is split by phase.
    """
    where = "operators, host time" if times.on_host else "GPU work"
    if parts is None:
        bars = [_bar("time", "By phase", "ns", time_amounts(times), where)]
    else:
        scaled = f", profiled times scaled to it (×{parts.scale:.2f})" if parts.scale < 1 else ""
        bars = [StepBar("time", "By part", "ns", parts.step_ns, parts.items(), f"one unprofiled step{scaled}")]
    if not times.on_host:
        kinds = [Amount("", kind, ns) for kind, ns in times.by_kind_ns.items()]
        idle = [one for one in time_amounts(times) if one.phase == IDLE]
        bars.append(_bar("time", "By kind", "ns", [*kinds, *idle], where))
    return tuple(bars)


def energy_amounts(energy: EnergyBreakdown) -> tuple[Amount, ...]:
    """Return a step's energy in J by module and phase, including idle energy, with uncertainties."""
    return tuple(Amount(one.module, one.phase, one.energy_j, one.uncertainty_j) for one in energy.accounts)


def energy_bars(energy: EnergyBreakdown) -> tuple[StepBar, ...]:
    """Return a step's energy split by phase; empty if it is known for the whole step only."""
    amounts = energy_amounts(energy)
    bar = _bar("energy", "By phase", "J", amounts, f"Of a row: {energy.method}.")
    return (replace(bar, uncertainty=energy.step_uncertainty_j),) if len(bar.parts) > 1 else ()


def owners_of(amounts: Iterable[Amount], modules: tuple[Module, ...]) -> set[int]:
    """Return the ids of the modules with any time or energy."""
    ids = ids_by_path(modules)
    return {ids.get(one.module, OUTSIDE) for one in amounts}


def ids_by_path(modules: tuple[Module, ...]) -> dict[str, int]:
    """Return ``path -> module_id``; of several modules at one path the first."""
    return {module.path: module.module_id for module in reversed(modules)}


def _bar(currency: str, title: str, unit: str, amounts: Iterable[Amount], note: str) -> StepBar:
    sums: dict[str, float] = {}
    for one in amounts:
        sums[one.phase or NO_PHASE] = sums.get(one.phase or NO_PHASE, 0.0) + one.amount
    return StepBar(currency, title, unit, sum(sums.values()), tuple(sums.items()), note)
