"""Rows of a rank's tables, as Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.activities import OwnedSpans
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.files.reading import storable
from gpuledger.model.accounts import CATEGORIES, PHASES, SPAN_KINDS
from gpuledger.model.journal.journal import REASONS, STEP_KINDS
from gpuledger.model.journal.reading import Journal
from gpuledger.model.pools import UNKNOWN_POOL
from gpuledger.model.schema.tables import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

    from gpuledger.analyze.posting.device import DeviceHistory

POOLS = ("small", "large", "expandable")


def join(name: str, pieces: list[dict[str, Any]]) -> pa.Table:
    """Return table ``name`` with the rows of all pieces."""
    import pyarrow as pa

    schema = TABLES[name].arrow_schema()
    tables = [pa.table([piece[field.name] for field in schema], schema=schema) for piece in pieces]
    return pa.concat_tables(tables).unify_dictionaries() if tables else schema.empty_table()


def label(codes: NDArray[Any], labels: tuple[str, ...]) -> pa.Array:
    """Return a dictionary-coded column."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(labels, pa.string()))


def _words(values: NDArray[np.object_]) -> pa.Array:
    import pyarrow as pa

    labels, codes = np.unique(values.astype(str), return_inverse=True)
    codes = pa.array(codes.astype(np.int8), mask=values == "")
    return pa.DictionaryArray.from_arrays(codes, pa.array(labels, pa.string()))


def maybe(values: NDArray[Any], missing: NDArray[np.bool_], kind: str = "int64") -> pa.Array:
    """Return a column with nulls where ``missing``."""
    import pyarrow as pa

    return pa.array(values, type=getattr(pa, kind)(), mask=missing)


def _time_at(times_ns: NDArray[np.int64], index: NDArray[np.int64]) -> pa.Array:
    missing = (index < 0) | (index == NEVER)
    picked = times_ns[np.where(missing, 0, index)] if times_ns.size else np.zeros(index.size, dtype=np.int64)
    return maybe(picked, missing)


def _index(index: NDArray[np.int64]) -> pa.Array:
    return maybe(np.where(index == NEVER, 0, index), index == NEVER)


def _id(values: NDArray[np.int64]) -> pa.Array:
    return maybe(values, values < 0, "int32")


Stacks = Sequence[Sequence[tuple[str, int, str]]]


def block_table(histories: list[DeviceHistory]) -> pa.Table:
    """Return the ``blocks`` table of all devices."""
    return join("blocks", [_block_rows(history) for history in histories])


def _block_rows(history: DeviceHistory) -> dict[str, Any]:
    lives, owners, events = history.lives, history.owners, history.events
    count = lives.address.size
    born = np.maximum(lives.alloc_index, 0)
    before = lives.alloc_index < 0

    def of_event(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(before, -1, values[born]) if values.size else np.full(count, -1, dtype=np.int64)

    return {
        "device_idx": np.full(count, history.device_idx),
        "stream": lives.stream,
        "pool_id": maybe(history.pool_id, history.pool_id == UNKNOWN_POOL, "int32"),
        "address": lives.address,
        "requested_bytes": lives.requested_bytes,
        "allocated_bytes": lives.allocated_bytes,
        "alloc_index": lives.alloc_index,
        "free_requested_index": _index(lives.free_requested_index),
        "free_index": _index(lives.free_index),
        "alloc_ns": _time_at(events.time_ns, lives.alloc_index),
        "free_requested_ns": _time_at(events.time_ns, lives.free_requested_index),
        "free_ns": _time_at(events.time_ns, lives.free_index),
        "step": owners.step,
        "phase": label(owners.phase, PHASES),
        "category": label(owners.category, CATEGORIES),
        "module_id": _id(owners.module_id),
        "name_id": _id(owners.name_id),
        "scope_id": _id(owners.scope_id),
        "operator_id": _id(of_event(events.operator_id)),
        "stack_id": _id(owners.stack_id),
    }


def segment_table(histories: list[DeviceHistory]) -> pa.Table:
    """Return the ``segments`` table of all devices."""
    return join("segments", [_segment_rows(history) for history in histories])


def _segment_rows(history: DeviceHistory) -> dict[str, Any]:
    lives = history.lives
    small_bytes = 2 << 20
    pool = [
        history.pool_of_segment.get(address, "expandable" if mapped else "small" if size == small_bytes else "large")
        for address, size, mapped in zip(
            lives.segment_address.tolist(), lives.segment_bytes.tolist(), lives.segment_mapped.tolist(), strict=True
        )
    ]
    return {
        "device_idx": np.full(lives.segment_address.size, history.device_idx),
        "address": lives.segment_address,
        "bytes": lives.segment_bytes,
        "stream": lives.segment_stream,
        "pool": label(np.array([POOLS.index(name) for name in pool], dtype=np.int8), POOLS),
        "alloc_index": lives.segment_alloc_index,
        "free_index": _index(lives.segment_free_index),
        "alloc_ns": _time_at(history.events.time_ns, lives.segment_alloc_index),
        "free_ns": _time_at(history.events.time_ns, lives.segment_free_index),
    }


def shard_table(journal: Journal) -> pa.Table:
    """Return the ``shards`` table: the part of each parameter that this rank has to hold."""
    rows = [row for row in journal.facts.get("shards") or () if len(row) == len(TABLES["shards"].columns)]
    if not rows:
        return TABLES["shards"].arrow_schema().empty_table()
    values = np.array(rows, dtype=np.int64).T
    name_id, module_id, *rest = values
    columns = dict(zip(TABLES["shards"].column_names[2:], rest, strict=True))
    return join("shards", [{"name_id": _id(name_id), "module_id": _id(module_id), **columns}])


def counter_table(journal: Journal, histories: list[DeviceHistory]) -> pa.Table:
    """Return the ``counters`` table: the journal's rows with their positions among the events."""
    table = journal.tables["counters"]
    index = np.full(table["t_ns"].size, -1, dtype=np.int64)
    inside = table["reason"] != REASONS.index("exit")
    for history in histories:
        mine = (table["device_idx"] == history.device_idx) & inside
        index[mine] = history.counts.index_of(table["alloc_count"][mine], table["free_count"][mine])
    rows = {column: values for column, values in table.items() if column != "reason"}
    rows["reason"] = label(table["reason"], REASONS)
    rows["event_index"] = maybe(index, ~inside)
    return join("counters", [rows])


def sample_table(journal: Journal) -> pa.Table:
    """Return the ``samples`` table: bytes, and the slower sensors if they were read at that time."""
    table, sensors = journal.tables["samples"], journal.tables["sensors"]
    place = _place_of(sensors, table)
    found = place >= 0
    rows: dict[str, Any] = {"t_ns": table["t_ns"], "device_idx": table["device_idx"]}
    rows |= {name: maybe(table[name], table[name] < 0) for name in ("used_bytes", "driver_bytes", "total_bytes")}
    for name, kind in _SENSOR_COLUMNS.items():
        values = sensors[name][place] if sensors[name].size else np.full(place.size, -1, dtype=sensors[name].dtype)
        rows[name] = maybe(values, ~found | ~(values >= 0), kind)  # NaN is not >= 0, so this drops missing values
    return join("samples", [rows])


_SENSOR_COLUMNS = {
    "power_average_w": "float64",
    "power_instant_w": "float64",
    "energy_j": "float64",
    "utilization_frac": "float64",
    "sm_clock_mhz": "int32",
    "temperature_c": "int32",
    "throttle": "int64",
}


def _place_of(sensors: dict[str, NDArray[Any]], samples: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Return the row of ``sensors`` with the time and GPU of each sample; -1 if there is none."""
    rows = {
        key: row for row, key in enumerate(zip(sensors["t_ns"].tolist(), sensors["device_idx"].tolist(), strict=True))
    }
    keys = zip(samples["t_ns"].tolist(), samples["device_idx"].tolist(), strict=True)
    return np.array([rows.get(key, -1) for key in keys], dtype=np.int64)


def window_table(journal: Journal) -> pa.Table:
    """Return the ``windows`` table. A window shorter than the counter's resolution has no energy."""
    import pyarrow as pa

    table = journal.tables["windows"]
    names = [journal.names[number] if number >= 0 else None for number in table["name_id"].tolist()]
    rows: dict[str, Any] = {**table, "name": pa.array(names, pa.string())}
    for name in ("energy_j", "uncertainty_j"):
        rows[name] = maybe(table[name], np.isnan(table[name]), "float64")
    rows["throttled_ns"] = maybe(table["throttled_ns"], table["throttled_ns"] < 0)
    return join("windows", [rows])


def process_sample_table(journal: Journal) -> pa.Table:
    """Return the ``process_samples`` table."""
    table = journal.tables["process_samples"]
    return join("process_samples", [{**table, "bytes": maybe(table["bytes"], table["bytes"] < 0)}])


def step_table(journal: Journal, histories: list[DeviceHistory]) -> pa.Table:
    """Return the ``steps`` table: a row per step and device."""
    return join("steps", [_step_rows(journal, history) for history in histories])


def _step_rows(journal: Journal, history: DeviceHistory) -> dict[str, Any]:
    steps, counters, pauses = (journal.tables[name] for name in ("steps", "counters", "pauses"))
    mine = (counters["device_idx"] == history.device_idx) & (counters["reason"] == REASONS.index("step_end"))
    ends = dict(
        zip(
            counters["step"][mine].tolist(),
            history.counts.index_of(counters["alloc_count"][mine], counters["free_count"][mine]).tolist(),
            strict=True,
        )
    )
    starts = {step + 1: end + 1 for step, end in ends.items()}
    first = np.array([starts.get(step, -1) for step in steps["step"].tolist()], dtype=np.int64)
    last = np.array([ends.get(step, -1) for step in steps["step"].tolist()], dtype=np.int64)
    started, ended = _events_of(history, steps["step"])
    last = np.where(last < 0, ended, last)  # without counters at its end, as of a call that was held back
    first = np.where((first < 0) & (last >= 0), started, first)
    inside = (pauses["start_ns"][None, :] >= steps["start_ns"][:, None]) & (
        pauses["start_ns"][None, :] < steps["end_ns"][:, None]
    )
    missing = (last < 0) | (steps["recorded"] == 0)
    return {
        "step": steps["step"],
        "device_idx": np.full(steps["step"].size, history.device_idx),
        "kind": label(steps["kind"], STEP_KINDS),
        "recorded": steps["recorded"] == 1,
        "start_ns": steps["start_ns"],
        "end_ns": steps["end_ns"],
        "paused_ns": (inside * pauses["duration_ns"][None, :]).sum(axis=1),
        "start_index": maybe(first, missing | (first < 0)),
        "end_index": maybe(last, missing),
    }


def _events_of(history: DeviceHistory, steps: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the first and the last event tagged with each step; -1 if there is none."""
    tagged = history.owners.event_tags.step
    found, first = np.unique(tagged, return_index=True)
    last = tagged.size - 1 - np.unique(tagged[::-1], return_index=True)[1]
    place = {step: position for position, step in enumerate(found.tolist())}
    at = np.array([place.get(step, -1) for step in steps.tolist()], dtype=np.int64)
    if not found.size:
        return at, at
    return np.where(at < 0, -1, first[at]), np.where(at < 0, -1, last[at])


def span_table(histories: list[DeviceHistory], owned: OwnedSpans | None, first_name: int) -> pa.Table:
    """Return the ``spans`` table: the phases and the profiled spans. Names of the latter begin at ``first_name``."""
    pieces = [_phase_rows(history) for history in histories if history.events.count]
    return join("spans", pieces if owned is None else [*pieces, _work_rows(owned, first_name)])


def _work_rows(owned: OwnedSpans, first_name: int) -> dict[str, Any]:
    count = owned.start_ns.size
    none = maybe(np.zeros(count, dtype=np.int64), np.ones(count, dtype=bool))
    return {
        "device_idx": owned.device_idx,
        "kind": label(owned.kind, SPAN_KINDS),
        "name_id": _id(owned.name_id + first_name),
        "start_ns": owned.start_ns,
        "end_ns": owned.end_ns,
        "start_index": none,
        "end_index": none,
        "module_id": _id(owned.module_id),
        "phase": label(owned.phase, PHASES),
        "step": owned.step,
        "stream": owned.stream,
        "operator_id": _id(np.where(owned.operator_id >= 0, owned.operator_id + first_name, -1)),
        "scope_id": _id(owned.scope_id),
        "flops": maybe(owned.work.flops, np.isnan(owned.work.flops), "float64"),
        "moved_bytes": maybe(owned.work.moved_bytes, np.isnan(owned.work.moved_bytes), "float64"),
        "numbers": _words(owned.work.numbers),
        "fusion_id": _id(owned.fusion_id),
        "stack_id": _id(owned.stack_id),
    }


def _phase_rows(history: DeviceHistory) -> dict[str, Any]:
    tags, times = history.owners.event_tags, history.events.time_ns
    changed = np.flatnonzero(np.diff(tags.visit) | np.diff(tags.phase) | np.diff(tags.step)) + 1
    start = np.concatenate(([0], changed))
    end = np.concatenate((changed, [history.events.count])) - 1
    count = start.size
    missing = np.ones(count, dtype=bool)
    return {
        "device_idx": np.full(count, history.device_idx),
        "kind": label(np.zeros(count, dtype=np.int8), SPAN_KINDS),
        "name_id": maybe(np.zeros(count, dtype=np.int32), missing, "int32"),
        "start_ns": times[start],
        "end_ns": np.concatenate((times[start[1:]], times[-1:])),
        "start_index": start,
        "end_index": end,
        "module_id": maybe(np.zeros(count, dtype=np.int32), missing, "int32"),
        "phase": label(tags.phase[start], PHASES),
        "step": tags.step[start],
        "stream": maybe(np.zeros(count, dtype=np.int64), missing),
        "operator_id": maybe(np.zeros(count, dtype=np.int32), missing, "int32"),
        "scope_id": maybe(np.zeros(count, dtype=np.int32), missing, "int32"),
        "flops": maybe(np.zeros(count), missing, "float64"),
        "moved_bytes": maybe(np.zeros(count), missing, "float64"),
        "numbers": _words(np.full(count, "", dtype=object)),
        "fusion_id": maybe(np.zeros(count, dtype=np.int32), missing, "int32"),
        "stack_id": maybe(np.zeros(count, dtype=np.int32), missing, "int32"),
    }


def stack_table(stacks: Stacks) -> pa.Table:
    """Return the ``stacks`` table, with one row per frame."""
    rows = [
        (number, depth, storable(file), line, storable(function))
        for number, frames in enumerate(stacks)
        for depth, (file, line, function) in enumerate(frames)
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(5)]
    return join("stacks", [dict(zip(TABLES["stacks"].column_names, columns, strict=True))])
