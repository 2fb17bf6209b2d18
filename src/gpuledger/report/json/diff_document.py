"""The JSON document of ``diff``: the metrics of both runs, and all differences."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.compare.group_diff import MODULE
from gpuledger.analyze.memory.tree import OUTSIDE_PATH
from gpuledger.model.schema.tables import SCHEMA_VERSION
from gpuledger.report.json.document import instant_document, place_document

if TYPE_CHECKING:
    from gpuledger.analyze.compare.changes import Change
    from gpuledger.analyze.compare.diff import Diff, PlaceDiff, Side
    from gpuledger.analyze.compare.group_diff import GroupChange, GroupDiff


def diff_document(diff: Diff) -> dict[str, Any]:
    """Return the JSON document of ``diff``. ``figures`` and ``breakdown`` contain only differences.

    With several ranks or devices, it is the document of the one with the highest peak, and ``ranks`` has all of them.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "equal": diff.is_empty,
        **_place_document(diff.main),
        "notes": list(diff.notes),
    }
    if len(diff.places) > 1:
        document["ranks"] = [_place_document(place) for place in diff.places]
    return document


def group_diff_document(diff: GroupDiff) -> dict[str, Any]:
    """Return what ``diff --json`` prints of two groups: all values, and each difference with its interval."""
    return {
        "schema_version": SCHEMA_VERSION,
        "significant": diff.is_significant,
        "before": list(diff.before),
        "after": list(diff.after),
        "rank": diff.rank,
        "device_idx": diff.device_idx,
        "device_name": diff.device_name,
        "after_device_idx": diff.after_device_idx,
        "after_device_name": diff.after_device_name,
        "confidence": diff.confidence,
        "figures": [{"name": one.name, **_group_change_document(one)} for one in diff.figures],
        "time_by_module": [
            {"module": _module_of(one.name.removeprefix(MODULE)), **_group_change_document(one)} for one in diff.modules
        ],
        "notes": list(diff.notes),
    }


def _group_change_document(change: GroupChange) -> dict[str, Any]:
    return {
        "unit": change.unit,
        "before": list(change.before),
        "after": list(change.after),
        "before_mean": change.before_mean,
        "after_mean": change.after_mean,
        **asdict(change.interval),
        "host_was_busy": change.host_was_busy,
        "significant": change.is_significant,
    }


def _place_document(place: PlaceDiff) -> dict[str, Any]:
    by = place.after.work_by
    return {
        "before": _side_document(place.before),
        "after": _side_document(place.after),
        "figures": [{"name": change.key[0], **_change_document(change)} for change in place.figures],
        "breakdown": [_account_document(change) for change in place.changes()],
        f"time_by_{by}": [_work_document(change, by) for change in place.time_changes()],
        f"energy_by_{by}": [_work_document(change, by) for change in place.energy_changes()],
    }


def _side_document(side: Side) -> dict[str, Any]:
    return {
        "run": side.run,
        **place_document(side),
        "is_compiled": side.is_compiled,
        "instant": None if side.breakdown is None else instant_document(side.breakdown.instant),
        "allocated_bytes": None if side.breakdown is None else side.breakdown.allocated_bytes,
        "metrics": {
            name: {"value": metric.value, "spread": metric.spread, "source": metric.source}
            for name, metric in side.metrics.items()
        },
    }


def _work_document(change: Change, by: str) -> dict[str, Any]:
    """Return a change of time or energy by module, line or function; the module is null outside modules."""
    return {by: _module_of(change.key[0]), **_change_document(change)}


def _module_of(path: str) -> str | None:
    return None if path == OUTSIDE_PATH else path


def _change_document(change: Change) -> dict[str, Any]:
    fields = ("before", "after", "delta", "noise", "noise_known", "within_noise")
    return {name: getattr(change, name) for name in fields}


def _account_document(change: Change) -> dict[str, Any]:
    category, module, phase, name, scope = change.key
    optional = {"phase": phase, "name": name, "scope": scope}
    return {
        "category": category,
        "module": module or None,
        **{key: text for key, text in optional.items() if text},
        "before_bytes": change.before,
        "after_bytes": change.after,
        "delta_bytes": change.delta,
        "noise_bytes": change.noise,
        "within_noise": change.within_noise,
    }
