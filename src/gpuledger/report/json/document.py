"""The JSON documents of ``show`` and ``balance``: metric names as everywhere, whole tables, never cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.overview.ranks import find_imbalance
from gpuledger.model.tables import SCHEMA_VERSION

if TYPE_CHECKING:
    from gpuledger.analyze.memory.breakdown import Breakdown
    from gpuledger.analyze.memory.instant import Instant
    from gpuledger.analyze.overview.balance import Balance
    from gpuledger.analyze.overview.summary import Summary
    from gpuledger.analyze.step.energy import EnergyBreakdown
    from gpuledger.analyze.step.own_cost import OwnCost
    from gpuledger.analyze.step.rates import Rates
    from gpuledger.analyze.step.side_by_side import Line
    from gpuledger.analyze.step.times import TimeBreakdown


@dataclass(frozen=True)
class View:
    """One device of one rank at one instant."""

    summary: Summary
    breakdown: Breakdown
    times: TimeBreakdown | None = None
    energy: EnergyBreakdown | None = None
    rates: Rates | None = None
    cost: OwnCost | None = None
    lines: tuple[Line, ...] = ()
    """Bytes, times and joules by the one word that was asked for."""


def show_document(views: Sequence[View], words: tuple[str, ...]) -> dict[str, Any]:
    """Return what ``show --json`` prints.

    With several views it is the document of the one whose peak is highest, and beside it ``ranks`` with all of them
    and ``imbalance``.
    """
    highest = max(views, key=lambda view: view.summary.peak_allocated_bytes)
    document = _view_document(highest, words)
    if len(views) > 1:
        imbalance = find_imbalance([view.summary for view in views])
        document["ranks"] = [_view_document(view, words) for view in views]
        document["imbalance"] = None if imbalance is None else asdict(imbalance)
    return document


def balance_document(rank: int, balance: Balance) -> dict[str, Any]:
    """Return what ``balance --json`` prints for one device of one rank."""
    fields = asdict(balance)
    fields["instant"] = instant_document(balance.instant)
    return {"schema_version": SCHEMA_VERSION, "rank": rank, "device_idx": balance.instant.device_idx, **fields}


def instant_document(instant: Instant) -> dict[str, Any]:
    """Return an instant as JSON."""
    return {**asdict(instant), "module": instant.module or None}


def _view_document(view: View, words: tuple[str, ...]) -> dict[str, Any]:
    summary, books = view.summary, view.breakdown
    times = summary.step_time
    return {
        "schema_version": SCHEMA_VERSION,
        "rank": summary.rank,
        "device_idx": summary.device_idx,
        "device_name": summary.device_name,
        "recorder": summary.recorder,
        "peak_allocated_bytes": summary.peak_allocated_bytes,
        "peak_reserved_bytes": summary.peak_reserved_bytes,
        "capacity_bytes": summary.capacity_bytes,
        "step_time_ns": times.median_ns,
        "step_time_p95_ns": times.p95_ns,
        "step_time_source": times.source,
        "later_peak_bytes": summary.later_peak_bytes,
        "instant": instant_document(books.instant),
        "allocated_bytes": books.allocated_bytes,
        "requested_bytes": books.requested_bytes,
        "active_bytes": books.active_bytes,
        "reserved_bytes": books.reserved_bytes,
        "time": None if view.times is None else _time_document(view.times),
        "energy": None if view.energy is None else _energy_document(view.energy),
        "rates": None if view.rates is None else asdict(view.rates),
        "own_cost": None if view.cost is None else asdict(view.cost),
        "accounts": [_account_document(account, words) for account in books.accounts],
        "lines": [asdict(line) for line in view.lines],
        "notes": list(summary.notes),
    }


def _time_document(times: TimeBreakdown) -> dict[str, Any]:
    """Return one step of the time pass; the accounts sum to ``work_ns``, and so do the scopes."""
    return {
        "steps": times.steps,
        "on_host": times.on_host,
        "work_ns": times.work_ns,
        "busy_ns": times.busy_ns,
        "idle_ns": times.idle_ns,
        "between_ns": times.between_ns,
        "unplaced_ns": times.unplaced_ns,
        "by_kind_ns": times.by_kind_ns,
        "accounts": [{**asdict(account), "module": account.module or None} for account in times.accounts],
        "scopes": [{**asdict(one), "scope": one.scope or None} for one in times.scopes],
    }


def _energy_document(energy: EnergyBreakdown) -> dict[str, Any]:
    """Return one step of the energy pass; the accounts sum to ``step_energy_j``, and so do the scopes."""
    accounts = [{**asdict(account), "module": account.module or None} for account in energy.accounts]
    scopes = [{**asdict(one), "scope": one.scope or None} for one in energy.scopes]
    return {**asdict(energy), "accounts": accounts, "scopes": scopes}


def _account_document(account: Any, words: tuple[str, ...]) -> dict[str, Any]:
    """Return one account; a module, phase, scope or name is null where there is none."""
    optional = {"module": account.module, "phase": account.phase, "scope": account.scope, "name": account.name}
    asked = {"module": "module", "phase": "phase", "scope": "scope", "tensor": "name"}
    kept = {asked[word]: optional[asked[word]] or None for word in words if word in asked}
    return {"category": account.category, **kept, "bytes": account.bytes, "blocks": account.blocks}
