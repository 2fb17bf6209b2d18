"""Validation of a journal before its tables are built. A journal can be damaged or malicious."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuledger.files.shapes import Fields, Items, ListOf, MappingOf, check_shape, maybe
from gpuledger.model.accounts import Identity, Phase
from gpuledger.model.bounds import check_bounds
from gpuledger.model.journal.journal import COLUMNS, REASONS, STEP_KINDS, Action, ActivityKind, BlockState
from gpuledger.model.journal.reading import Journal, PartContent, joined, read_parts
from gpuledger.model.json_object import shape_of
from gpuledger.model.manifest import RecordedFacts

_FACTS = Fields(
    {
        **shape_of(RecordedFacts).known,
        "closed": maybe(str),
        "called_roots": maybe(ListOf(int)),
        "contained_roots": ListOf(Items((int, int, int, str))),
        "root_names": ListOf(Items((int, str))),
        "wrapped_models": ListOf(Items((int, int))),
        "module_classes": ListOf(Items((int, str))),
        "stack_modules": ListOf(Items((int, int, int))),
        "workspace_bytes": maybe(ListOf(int)),
        "workspace_addresses": maybe(ListOf(int)),
        "steps_asked": maybe(ListOf(maybe(int))),
        "activity_names": maybe(ListOf(str)),
        "captured_names": ListOf(str),
        "operator_inputs": maybe(ListOf(maybe(ListOf(maybe(ListOf(object)), 4, 4)))),
        "time_pass_open": maybe(bool),
        "timed_operators": Fields({"names": ListOf(str), "range_ns": ListOf(int, 2, 2)}, ("names", "range_ns")),
        "card_uuids": maybe(ListOf(str)),
        "energy_counters": maybe(MappingOf(maybe(MappingOf(int)))),
        "idle_w": maybe(MappingOf(maybe(float))),
        "own_pids": maybe(ListOf(int)),
        "pids_before": maybe(MappingOf(maybe(ListOf(int)))),
        "operators": maybe(ListOf(str)),
        "shards": maybe(ListOf(ListOf(int, 5, 9))),
        "cublas_handles": int,
        "uncompiled": MappingOf(str),
        "memory_errors": int,
        "compiled_graphs": maybe(int),
        "captured_pools": ListOf(int),
        "step_memory_from_ns": maybe(int),
    }
)
"""Further keys are allowed."""
_MODULE = Fields(
    {"path": str, "class_name": str, "parent": int, "root": int, "parameters": int, "compiled": object, "wraps": int},
    ("path", "class_name", "parent", "root", "parameters", "compiled"),
)
_CODES = {
    "events.action": len(Action),
    "tags.phase": len(Phase),
    "snapshots.reason": len(REASONS),
    "snapshot_blocks.state": len(BlockState),
    "identities.kind": len(Identity),
    "storage_parts.kind": len(Identity),
    "failure_blocks.state": len(BlockState),
    "failure_events.action": len(Action),
    "counters.reason": len(REASONS),
    "steps.kind": len(STEP_KINDS),
    "activities.kind": len(ActivityKind),
    "captures.kind": len(ActivityKind),
    "pauses.reason": len(REASONS),
}
"""Columns with positions in a list, and the length of that list."""
_NAMED = {
    "activities": "the timing measurement was",
    "captures": "captured CUDA graphs were",
    "operators": "their times were",
}
"""Tables whose rows have names, and what is ignored if one has none."""


def read_checked(directory: Path) -> Journal:
    """Return a validated journal; otherwise as :func:`read_journal`.

    A part with an invalid value ends the reading, as a damaged part does. Unknown ids of names, modules and stacks are
    dropped. ``damaged`` lists both.
    """
    return _with_known_numbers(joined(*read_parts(directory, _check_part)))


def _check_part(content: PartContent) -> None:
    arrays, texts = content
    check_shape(texts["facts"], _FACTS, "")
    check_shape(texts["modules"], ListOf(_MODULE), "modules")
    for table, columns in COLUMNS.items():
        for name in columns:
            values = arrays.get(f"{table}.{name}")
            if values is None or not values.size:
                continue
            check_bounds(values, f"{table}.{name}")
            count = _CODES.get(f"{table}.{name}")
            if count is not None and not 0 <= int(values.min()) <= int(values.max()) < count:
                raise ValueError(f"{table}.{name}: expected numbers from 0 to {count - 1}")


def _with_known_numbers(journal: Journal) -> Journal:
    """Return a journal without ids of names, modules and stacks that it does not define."""
    activities = len(journal.facts.get("activity_names") or [])
    inputs = len(journal.facts.get("operator_inputs") or [])
    own_counts = {
        "activities": {"name_id": activities, "inputs_id": inputs},
        "captures": {"name_id": len(journal.facts.get("captured_names") or [])},
        "operators": {"name_id": len((journal.facts.get("timed_operators") or {}).get("names") or [])},
    }
    counts = {"name_id": len(journal.names), "module_id": len(journal.modules), "stack_id": len(journal.stacks)}
    tables, found = {}, []
    for table, columns in journal.tables.items():
        known = own_counts.get(table, counts)
        tables[table] = dict(columns)
        for name, count in known.items():
            values = columns.get(name)
            if values is not None and values.size and (int(values.max()) >= count or int(values.min()) < -1):
                found.append(f"{table}.{name}: invalid indices were ignored")
                tables[table][name] = np.where((values >= 0) & (values < count), values, -1).astype(values.dtype)
    for table, what in _NAMED.items():
        if tables[table]["name_id"].size and int(tables[table]["name_id"].min()) < 0:
            found.append(f"{table}: some have no name, so {what} ignored")
            tables[table] = {name: values[:0] for name, values in tables[table].items()}
    modules = [_known_module(number, one, journal.modules) for number, one in enumerate(journal.modules)]
    if modules != journal.modules:
        found.append("modules: invalid indices were ignored")
    return replace(journal, tables=tables, modules=modules, damaged=[*journal.damaged, *found])


def _known_module(number: int, module: dict[str, Any], modules: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a module with valid ids of its parent and outermost module. Invalid ones make it an outermost module."""
    root, parent = module["root"], module["parent"]
    root = root if 0 <= root < len(modules) and modules[root]["root"] == root else number
    return {**module, "root": root, "parent": parent if -1 <= parent < len(modules) and parent != number else -1}
