"""Tables of the flight recorder: memory per step, and blocks, segments and last events at an out-of-memory error."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.late.late_blocks import (
    LateBlocks,
    find_module_of_request,
    find_owners_of_late_blocks,
)
from gpuledger.analyze.posting.rows import join, label, maybe
from gpuledger.model.accounts import CATEGORIES, PHASES
from gpuledger.model.journal.journal import Action
from gpuledger.model.journal.reading import Journal
from gpuledger.model.journal.step_memory import HOST_UNIT_BYTES, UNIT_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

    from gpuledger.analyze.posting.device import DeviceHistory
    from gpuledger.model.flight_facts import FailedAllocation

STATES = ("inactive", "allocated", "awaiting_free")
KNOWN_BY = ("address", "order", "size", "stack")
ACTIONS = tuple(action.name.lower() for action in Action)


def step_memory_table(journal: Journal) -> pa.Table:
    """Return the ``step_memory`` table: a row per step and device."""
    table = journal.tables["step_memory"]

    def sizes(name: str, unit_bytes: int) -> pa.Array:
        return maybe(table[name].astype(np.int64) * unit_bytes, table[name] < 0)

    from_ns = int(journal.facts.get("step_memory_from_ns") or 0)
    rows: dict[str, Any] = {
        "device_idx": table["device_idx"].astype(np.int32),
        "step": table["step"],
        "t_ns": from_ns + table["end_ms"].astype(np.int64) * 1_000_000,
        "allocated_bytes": sizes("allocated", UNIT_BYTES),
        "reserved_bytes": sizes("reserved", UNIT_BYTES),
        "peak_allocated_bytes": sizes("peak", UNIT_BYTES),
        "host_bytes": sizes("host", HOST_UNIT_BYTES),
    }
    rows |= {name: sizes(name, 1) for name in ("blocks", "allocations", "retries")}
    return join("step_memory", [rows])


def failure_tables(journal: Journal, histories: list[DeviceHistory]) -> dict[str, pa.Table]:
    """Return the tables of out-of-memory errors, with the owners of blocks as far as the recorded steps know them."""
    events, segments = journal.tables["failure_events"], journal.tables["failure_segments"]
    return {
        "failure_blocks": _block_table(journal, histories),
        "failure_segments": join(
            "failure_segments",
            [{**segments, "small": segments["small"] == 1, "expandable": segments["expandable"] == 1}],
        ),
        "failure_events": join("failure_events", [{**events, "action": label(events["action"], ACTIONS)}]),
    }


def with_modules_by_order(
    journal: Journal, histories: list[DeviceHistory], failures: tuple[FailedAllocation, ...]
) -> tuple[FailedAllocation, ...]:
    """Return the errors, those in backward with the module that the order of the step shows, if no other is known."""
    found = []
    facts = {fact.get("failure_id"): fact for fact in journal.facts.get("oom") or []}
    for failure in failures:
        history = next((one for one in histories if one.device_idx == failure.device_idx), None)
        is_in_thread = failure.failure_id is not None and not failure.frames and not failure.library
        module_id = -1
        if history is not None and is_in_thread and failure.module_id is None:
            module_id = find_module_of_request(journal, history, facts[failure.failure_id])
        found.append(failure if module_id < 0 else replace(failure, module_id=module_id, is_module_by_order=True))
    return tuple(found)


def _block_table(journal: Journal, histories: list[DeviceHistory]) -> pa.Table:
    blocks = journal.tables["failure_blocks"]
    count = blocks["address"].size
    found = LateBlocks.unknown(count)
    for failure in journal.facts.get("oom") or []:
        mine = np.flatnonzero(blocks["failure_id"] == failure.get("failure_id"))
        history = next((one for one in histories if one.device_idx == failure.get("device_idx")), None)
        if mine.size:
            found.put(mine, find_owners_of_late_blocks(journal, history, failure, mine))
    free = blocks["state"] == 0
    rows: dict[str, Any] = {
        **{name: blocks[name] for name in ("failure_id", "device_idx", "segment_address", "address")},
        "allocated_bytes": blocks["bytes"],
        "requested_bytes": np.where(free, 0, blocks["requested_bytes"]),
        "state": label(blocks["state"], STATES),
        "category": _label_or_null(found.category, CATEGORIES),
        "module_id": maybe(found.module_id, found.module_id < 0, "int32"),
        "phase": _label_or_null(found.phase, PHASES),
        "known_by": _label_or_null(found.known_by, KNOWN_BY),
        "step": maybe(found.step, found.step < 0, "int32"),
        "stack_id": maybe(found.stack_id, found.stack_id < 0, "int32"),
    }
    return join("failure_blocks", [rows])


def _label_or_null(codes: NDArray[np.int64], labels: tuple[str, ...]) -> pa.Array:
    import pyarrow as pa

    indices = pa.array(np.maximum(codes, 0).astype(np.int8), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(labels, pa.string()))
