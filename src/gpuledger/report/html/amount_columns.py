"""Time and energy of a step as columns of a report's payload, on the nodes of its module tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.memory.account_series import OUTSIDE
from gpuledger.analyze.step.energy import IDLE
from gpuledger.analyze.view.step_amounts import NO_PHASE, Amount, ids_by_path

if TYPE_CHECKING:
    from gpuledger.analyze.view.report_tree import Module, ReportTree


def phases_of(currencies: Iterable[Sequence[Amount]]) -> tuple[str, ...]:
    """Return every phase that occurs; :data:`NO_PHASE` for amounts without one."""
    return tuple({one.phase or NO_PHASE for amounts in currencies for one in amounts})


def amount_columns(
    amounts: Sequence[Amount], tree: ReportTree, modules: tuple[Module, ...], numbers: dict[str, int], decimals: int
) -> dict[str, list[Any]]:
    """Return the amounts as columns sorted by node: node, category (the phase's number), amount, uncertainty."""
    ids = ids_by_path(modules)
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


def _rounded(value: float | None, decimals: int) -> float | None:
    return None if value is None else round(value, decimals)
