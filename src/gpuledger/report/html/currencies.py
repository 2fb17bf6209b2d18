"""Milliseconds and joules of a step as a report's payload holds them: on the nodes of the tree that holds the bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.memory.account_series import OUTSIDE
from gpuledger.report.base.colors import phase_order
from gpuledger.units import format_joules

if TYPE_CHECKING:
    from gpuledger.analyze.step.energy import EnergyBreakdown
    from gpuledger.analyze.step.step_parts import StepParts
    from gpuledger.analyze.step.times import TimeBreakdown
    from gpuledger.report.html.tree import Module, Tree

IDLE = "idle"
NO_PHASE = "between"


@dataclass(frozen=True)
class Amount:
    """What one module spends in one phase of a step, in ns or J; ``uncertainty`` is plus or minus, None where unknown.

    ``module`` is "" outside every module and while idle.
    """

    module: str
    phase: str
    amount: float
    uncertainty: float | None = None


@dataclass(frozen=True)
class Bar:
    """A step cut into parts that follow one another: (phase or kind, amount). ``whole`` is what they are parts of."""

    title: str
    unit: str
    whole: float
    parts: tuple[tuple[str, float], ...]
    note: str


def time_amounts(times: TimeBreakdown) -> tuple[Amount, ...]:
    """Return a step's nanoseconds by module and phase, and what is idle."""
    spent = tuple(Amount(one.module, one.phase, one.time_ns) for one in times.accounts)
    idle = (Amount("", IDLE, times.idle_ns),) if times.idle_ns is not None and times.idle_ns > 0 else ()
    return spent + idle


def time_bars(times: TimeBreakdown, parts: StepParts | None) -> tuple[Bar, ...]:
    """Return an undisturbed step cut into its parts and, on a card, its work by kind.

    Without an undisturbed step to cut, the work of the time pass is cut by phase.
    """
    where = "operators, host time" if times.on_host else "work of the card"
    if parts is None:
        bars = [_bar("By phase", "ns", time_amounts(times), where)]
    else:
        scaled = f", the profiled parts times {parts.scale:.2f}" if parts.scale < 1 else ""
        bars = [Bar("By part", "ns", parts.step_ns, parts.items(), f"one step, undisturbed{scaled}")]
    if not times.on_host:
        kinds = [Amount("", kind, ns) for kind, ns in times.by_kind_ns.items()]
        idle = [one for one in time_amounts(times) if one.phase == IDLE]
        bars.append(_bar("By kind", "ns", [*kinds, *idle], where))
    return tuple(bars)


def energy_amounts(energy: EnergyBreakdown) -> tuple[Amount, ...]:
    """Return a step's joules by module and phase, idle ones included, each plus or minus."""
    return tuple(Amount(one.module, one.phase, one.energy_j, one.uncertainty_j) for one in energy.accounts)


def energy_bars(energy: EnergyBreakdown) -> tuple[Bar, ...]:
    """Return a step's joules cut by phase; none where they are of the whole step only."""
    amounts = energy_amounts(energy)
    bar = _bar("By phase", "J", amounts, f"± {format_joules(energy.step_uncertainty_j)}, {energy.method}")
    return (bar,) if len(bar.parts) > 1 else ()


def phases_of(currencies: Iterable[Sequence[Amount]]) -> tuple[str, ...]:
    """Return every phase in use; what has none is between the others."""
    return tuple({one.phase or NO_PHASE for amounts in currencies for one in amounts})


def owners_of(amounts: Iterable[Amount], modules: tuple[Module, ...]) -> set[int]:
    """Return the ids of the modules that spend something."""
    ids = _ids(modules)
    return {ids.get(one.module, OUTSIDE) for one in amounts}


def amount_columns(
    amounts: Sequence[Amount], tree: Tree, modules: tuple[Module, ...], numbers: dict[str, int], decimals: int
) -> dict[str, list[Any]]:
    """Return the amounts as columns sorted by node: node, category (the phase's number), amount, uncertainty."""
    ids = _ids(modules)
    held: dict[tuple[int, int], list[float | None]] = {}
    for one in amounts:
        node = tree.idle if one.phase == IDLE else tree.node_of.get(ids.get(one.module, OUTSIDE), tree.outside)
        sums = held.setdefault((node, numbers[one.phase or NO_PHASE]), [0.0, 0.0])
        sums[0] = (sums[0] or 0.0) + one.amount
        sums[1] = None if sums[1] is None or one.uncertainty is None else sums[1] + one.uncertainty
    places = sorted(held)
    return {
        "node": [node for node, _ in places],
        "category": [category for _, category in places],
        "amount": [round(held[place][0] or 0.0, decimals) for place in places],
        "uncertainty": [_rounded(held[place][1], decimals) for place in places],
    }


def _bar(title: str, unit: str, amounts: Iterable[Amount], note: str) -> Bar:
    sums: dict[str, float] = {}
    for one in amounts:
        sums[one.phase or NO_PHASE] = sums.get(one.phase or NO_PHASE, 0.0) + one.amount
    return Bar(title, unit, sum(sums.values()), tuple((name, sums[name]) for name in phase_order(tuple(sums))), note)


def _ids(modules: tuple[Module, ...]) -> dict[str, int]:
    """Return ``path -> module_id``; of several modules at one path the first."""
    return {module.path: module.module_id for module in reversed(modules)}


def _rounded(value: float | None, decimals: int) -> float | None:
    return None if value is None else round(value, decimals)
