"""The JSON document of ``check``: every limit with its value, and the keys of exceeded limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.compare.budget import unit_of
from gpuledger.model.schema.tables import SCHEMA_VERSION

if TYPE_CHECKING:
    from gpuledger.analyze.compare.budget import Gate


def check_document(run: str, gates: Sequence[Gate], notes: Sequence[str] = ()) -> dict[str, Any]:
    """Return the JSON document of ``check``. ``over`` has the keys of unmet limits."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run,
        "ok": all(gate.ok for gate in gates),
        "over": [gate.limit.key for gate in gates if not gate.ok],
        "limits": [_gate_document(gate) for gate in gates],
        "notes": list(notes),
    }


def _gate_document(gate: Gate) -> dict[str, Any]:
    found = gate.found
    return {
        "key": gate.limit.key,
        "unit": unit_of(gate.limit.key),
        "ok": gate.ok,
        "found": None if found is None else found.value,
        "limit": gate.limit.value,
        "over": gate.over,
        "base": gate.limit.base,
        "written": gate.limit.written,
        "rank": None if found is None else found.rank,
        "device_idx": None if found is None else found.device_idx,
        "source": None if found is None else found.source,
        "note": gate.note,
    }
