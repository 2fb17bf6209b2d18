"""The JSON documents of ``show`` and ``balance``: metric names as everywhere, and all rows of the tables.

A ``module`` is null outside modules; text shows it as ``(outside modules)``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from gpuledger.model.schema.tables import SCHEMA_VERSION

if TYPE_CHECKING:
    from gpuledger.analyze.memory.failures.oom import OutOfMemory
    from gpuledger.analyze.memory.growth import Growth
    from gpuledger.analyze.memory.instant import Instant
    from gpuledger.analyze.overview.balance import Balance
    from gpuledger.analyze.ranks.rank_set import RankSet
    from gpuledger.analyze.step.energy import EnergyBreakdown
    from gpuledger.analyze.step.times import TimeBreakdown
    from gpuledger.analyze.view.device_view import DeviceView
    from gpuledger.analyze.view.view import RunView
    from gpuledger.model.manifest import RankManifest


_TIME_FIELDS = (
    *("steps", "on_host", "work_ns", "busy_ns", "step_ns", "of_profiled_step", "idle_ns"),
    "idle_waiting_for_cpu_ns",
    *("between_ns", "unplaced_ns", "by_kind_ns"),
)


class OfDevice(Protocol):
    """An object about one device of one rank."""

    @property
    def rank(self) -> int:
        """Return the rank's number."""

    @property
    def device_idx(self) -> int:
        """Return the device's index."""

    @property
    def device_name(self) -> str:
        """Return the device's name."""


def show_document(view: RunView) -> dict[str, Any]:
    """Return the JSON document of ``show``.

    With several devices, it is the document of the one with the highest peak; ``ranks`` has all of them, or of many
    ranks some. ``rank_set`` has all ranks together, and ``imbalance`` compares the devices.
    """
    document = _device_document(view.highest)
    document["exit_status"], document["signal"] = view.run.manifest.exit_status, view.run.manifest.signal
    document["notes"] = [*view.notes, *view.highest.summary.outside_notes]
    document["out_of_memory"] = [oom_document(rank.number, failure) for rank, failure in view.out_of_memory]
    document["problems"] = list(view.problems)
    document["growth"] = [growth_document(growth) for growth in view.growth]
    if len(view.devices) > 1:
        document["ranks"] = [_device_document(device) for device in view.devices]
        document["rank_set"] = None if view.rank_set is None else rank_set_document(view.rank_set)
        document["imbalance"] = None if view.imbalance is None else asdict(view.imbalance)
    return document


def rank_set_document(ranks: RankSet) -> dict[str, Any]:
    """Return all ranks together as JSON. ``matrix`` has a row for each category and a column for each line."""
    return {**asdict(ranks), "highest_rank": ranks.highest.rank, "median_peak_bytes": ranks.median_peak_bytes}


def balance_document(rank: int, balance: Balance) -> dict[str, Any]:
    """Return the JSON document of ``balance`` for one device of one rank."""
    fields = asdict(balance)
    fields["instant"] = instant_document(balance.instant)
    return {"schema_version": SCHEMA_VERSION, "rank": rank, "device_idx": balance.instant.device_idx, **fields}


def instant_document(instant: Instant) -> dict[str, Any]:
    """Return an instant as JSON; time and step are None if an imported file does not have them."""
    known = {"t_ns": instant.t_ns if instant.t_ns > 0 else None, "step": instant.step or (0 if instant.phase else None)}
    return {**asdict(instant), **known, "module": instant.module or None, "line": instant.line or None}


def oom_document(rank: int, failure: OutOfMemory) -> dict[str, Any]:
    """Return an out-of-memory error as JSON: the request, why it failed, what held the memory, and what would help."""
    names = ("device_idx", "step", "times", "tried_bytes", "total_bytes", "free_bytes", "largest_free_bytes")
    return {
        "rank": rank,
        **{name: getattr(failure, name) for name in names},
        "line": failure.line or None,
        "module": failure.module or None,
        "is_module_by_order": failure.is_module_by_order,
        "library": failure.library or None,
        "thread": failure.thread or None,
        "in_backward": failure.in_backward,
        "is_capturing": failure.is_capturing,
        "inputs": [list(shape) for shape in failure.inputs],
        "ending": None if failure.ending is None else asdict(failure.ending),
        "cause": None if failure.cause is None else asdict(failure.cause),
        "state": None if failure.state is None else asdict(failure.state),
        "besides": asdict(failure.besides),
        "last_steps": [asdict(one) for one in failure.last_steps],
        "remedies": [asdict(one) for one in failure.remedies],
    }


def host_memory_document(manifest: RankManifest) -> dict[str, Any] | None:
    """Return the latest value and the peak of each kind of host memory as JSON; None without the flight recorder.

    ``workers`` are the processes that it started. ``dev_shm`` is what all processes of the machine have there.
    """
    if not manifest.host_memory:
        return None
    kinds = {one.kind: {"bytes": one.bytes, "peak_bytes": one.peak_bytes} for one in manifest.host_memory}
    return {"limit_bytes": manifest.host_limit_bytes, "kinds": kinds}


def growth_document(growth: Growth) -> dict[str, Any]:
    """Return memory that grows as JSON. What is not known is null."""
    holder = growth.holder
    words = {name: getattr(growth, name) or None for name in ("category", "module", "line")}
    sizes = ("element_bytes", "element_unused_bytes")
    names = ("kind", "name", "where", "path", "length", "more", "content", "bound", *sizes)
    held = None if holder is None else {name: getattr(holder, name) for name in names}
    fields = ("rank", "device_idx", "step_bytes", "since_step", "last_step", "grown_bytes", "limit_bytes")
    steps = ("steps_left", "steps_until_full", "has_ended")
    return {**{name: getattr(growth, name) for name in (*fields, *steps)}, **words, "holder": held}


def place_document(place: OfDevice) -> dict[str, Any]:
    """Return rank and device of an object."""
    return {"rank": place.rank, "device_idx": place.device_idx, "device_name": place.device_name}


def _device_document(view: DeviceView) -> dict[str, Any]:
    summary, breakdown = view.summary, view.breakdown
    times = summary.step_time
    return {
        "schema_version": SCHEMA_VERSION,
        **place_document(summary),
        "recorder": summary.recorder,
        "peak_allocated_bytes": summary.peak_allocated_bytes,
        "peak_reserved_bytes": summary.peak_reserved_bytes,
        "recorded_peak_allocated_bytes": summary.recorded_peak_allocated_bytes,
        "recorded_peak_reserved_bytes": summary.recorded_peak_reserved_bytes,
        "capacity_bytes": summary.capacity_bytes,
        "step_time_ns": times.median_ns,
        "step_time_p95_ns": times.p95_ns,
        "step_time_source": times.source,
        "instant": instant_document(breakdown.instant),
        "allocated_bytes": breakdown.allocated_bytes,
        "requested_bytes": breakdown.requested_bytes,
        "active_bytes": breakdown.active_bytes,
        "reserved_bytes": None if summary.recorded_peak_reserved_bytes is None else breakdown.reserved_bytes,
        "host_memory": host_memory_document(view.rank.manifest),
        "time": None if view.times is None else _time_document(view.times),
        "energy": None if view.energy is None else _energy_document(view.energy),
        "rates": None if view.rates is None else asdict(view.rates),
        "overhead": asdict(view.overhead),
        "breakdown": [_account_document(account, view.options.account_words) for account in breakdown.accounts],
        "lines": [asdict(line) for line in view.lines],
        "fusions": [asdict(one) for one in view.fusions] if view.options.group_by == "fusion" else [],
        "findings": [{**asdict(one), "fits": view.fits(one.peak_after_bytes)} for one in view.findings],
        "loop": None if view.loop is None else asdict(view.loop),
        "notes": [*summary.notes, *summary.outside_notes],
    }


def _time_document(times: TimeBreakdown) -> dict[str, Any]:
    """Return one profiled step; the breakdown by module and phase sums to ``work_ns``, and so do scopes and lines."""
    return {
        **{name: getattr(times, name) for name in _TIME_FIELDS},
        "breakdown": [{**asdict(account), "module": account.module or None} for account in times.accounts],
        "scopes": [{**asdict(one), "scope": one.scope or None} for one in times.scopes],
        "lines": [{**asdict(one), "line": one.line or None} for one in times.lines],
    }


def _energy_document(energy: EnergyBreakdown) -> dict[str, Any]:
    """Return the energy of one step; the breakdown sums to ``step_energy_j``, and so do the scopes.

    Both are empty without a timing measurement.
    """
    accounts = [{**asdict(account), "module": account.module or None} for account in energy.accounts]
    scopes = [{**asdict(one), "scope": one.scope or None} for one in energy.scopes]
    fields = {name: value for name, value in asdict(energy).items() if name != "accounts"}
    return {**fields, "breakdown": accounts, "scopes": scopes}


def _account_document(account: Any, words: tuple[str, ...]) -> dict[str, Any]:
    """Return one row of a breakdown. A missing module, phase, scope, name or line is null."""
    optional = {"module": account.module, "phase": account.phase, "scope": account.scope, "name": account.name}
    optional |= {"line": account.line, "function": account.function}
    asked = {"module": "module", "phase": "phase", "scope": "scope", "tensor": "name"}
    asked |= {word: word for word in ("line", "function")}
    kept = {asked[word]: optional[asked[word]] or None for word in words if word in asked}
    return {"category": account.category, **kept, "bytes": account.bytes, "blocks": account.blocks}
