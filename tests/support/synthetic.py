"""Runs made of numbers: any size, valid in every table, and with known answers.

A run has a setup, three recorded steps and five unrecorded ones. Every event has a *key*: 0 to 1 is the setup, step n
lies between n and n + 1. Sorting the keys gives the indices, so the order is consistent by construction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from synthetic_lives import GIB, MIB, RECORDED_STEPS, START_NS, STEP_NS, Blocks, Order, draw_lives, place

from gpuledger.model.accounts import CATEGORIES, PHASES
from gpuledger.model.journal.journal import REASONS, STEP_KINDS
from gpuledger.model.run import Run, read_run, write_table
from gpuledger.model.run_directory import write_json
from gpuledger.model.schema.tables import SCHEMA_VERSION, TABLES

if TYPE_CHECKING:
    from pathlib import Path

PAUSE_NS = 4_000_000
ALL_STEPS = 8
TOTAL_BYTES = 143_771 * MIB
DRIVER_BYTES = 615 * MIB
CONTEXT_BYTES = 616 * MIB
LIBRARY_BYTES = 66 * MIB
OTHER_PROCESS_BYTES = 1_100 * MIB
UNACCOUNTED_BYTES = 3 * MIB
PID, OTHER_PID = 4_321, 99
HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "nul\x00inside",
    "🔥layer",
    "\u202eright\u200fto left",
    "<!--",
    "{{__proto__}}'\"`$&\\",
    "tab\tnew\nline",
)
PIECES = ("attention", "mlp", "norm", "proj", "embed", "head")
SPANS = (
    ("between", 0.0, 0.05),
    ("forward", 0.05, 0.45),
    ("backward", 0.45, 0.85),
    ("optimizer", 0.85, 0.95),
    ("between", 0.95, 1.0),
)


def make_run(
    path: Path,
    *,
    blocks: int = 2000,
    modules: int = 30,
    seed: int = 0,
    ranks: int = 1,
    cuda: bool = True,
    hostile_names: bool = False,
) -> Path:
    """Return ``path`` after writing a run of ``ranks`` ranks with ``blocks`` blocks each."""
    path.mkdir(parents=True)
    write_json(path / "manifest.json", _run_manifest(hostile_names))
    for rank in range(ranks):
        _write_rank(path / f"rank-{rank}", rank, blocks, modules, seed + rank, cuda, hostile_names)
    return path


def load_run(path: Path, **arguments: Any) -> Run:
    """Return the run :func:`make_run` writes, read back."""
    return read_run(make_run(path, **arguments))


def _write_rank(
    directory: Path, rank: int, count: int, modules: int, seed: int, cuda: bool, hostile_names: bool
) -> None:
    directory.mkdir()
    rng = np.random.default_rng(seed)
    lives = draw_lives(rng, count, modules)
    if not cuda:
        lives.bytes, lives.completed = lives.requested, lives.given_back
    address, segments = place(lives)
    order = Order(lives, segments if cuda else None)
    device = 0 if cuda else -1
    paths = _module_paths(modules, hostile_names)
    for name, columns in {
        "blocks": _block_rows(rng, lives, order, address, device, modules),
        "segments": _segment_rows(segments, order, device) if cuda else {},
        "counters": _counter_rows(lives, segments, order, device),
        "samples": _sample_rows(segments, order) if cuda else {},
        "process_samples": _process_rows(segments, order) if cuda else {},
        "steps": _step_rows(order, device),
        "spans": _span_rows(order, device),
        "modules": _module_rows(paths, modules),
        "names": {"name_id": np.arange(modules), "name": [f"{path}.weight" for path in paths]},
        "stacks": _stack_rows(),
    }.items():
        write_table(directory, _table(name, columns), name)
    write_json(directory / "manifest.json", _rank_manifest(rank, cuda))


def _table(name: str, columns: dict[str, Any]) -> pa.Table:
    schema = TABLES[name].arrow_schema()
    if not columns:
        return schema.empty_table()
    count = len(next(iter(columns.values())))
    return pa.table([columns.get(f.name, pa.nulls(count, f.type)) for f in schema], schema=schema)


def _label(values: np.ndarray, words: tuple[str, ...]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.asarray(values, np.int8)), pa.array(words))


def _maybe(values: np.ndarray, missing: np.ndarray) -> pa.Array:
    return pa.array(np.where(missing, 0, values).astype(np.int64), mask=missing)


def _block_rows(
    rng: np.random.Generator, lives: Blocks, order: Order, address: np.ndarray, device: int, modules: int
) -> dict[str, Any]:
    count = lives.bytes.size
    kept, before = ~np.isfinite(lives.given_back), lives.born < 0
    named = np.isin(lives.category, [CATEGORIES.index(n) for n in ("weight", "buffer", "gradient", "optimizer_state")])
    stack = np.where(rng.uniform(size=count) < 0.3, rng.integers(0, 20, count), -1)
    return {
        "device_idx": np.full(count, device),
        "stream": np.zeros(count, np.int64),
        "address": address,
        "requested_bytes": lives.requested,
        "allocated_bytes": lives.bytes,
        "alloc_index": order.index(lives.born),
        "free_requested_index": _maybe(order.index(lives.given_back), kept),
        "free_index": _maybe(order.index(lives.completed), kept),
        "alloc_ns": _maybe(order.time_ns(lives.born), before),
        "free_requested_ns": _maybe(order.time_ns(lives.given_back), kept),
        "free_ns": _maybe(order.time_ns(lives.completed), kept),
        "step": lives.step,
        "phase": _label(lives.phase, PHASES),
        "category": _label(lives.category, CATEGORIES),
        "module_id": pa.array(lives.module_id.astype(np.int32), mask=lives.module_id < 0),
        "name_id": pa.array(lives.module_id.astype(np.int32), mask=~named | (lives.module_id < 0)),
        "stack_id": pa.array(stack.astype(np.int32), mask=stack < 0),
    }


def _segment_rows(segments: dict[str, np.ndarray], order: Order, device: int) -> dict[str, Any]:
    count = segments["bytes"].size
    index = np.where(segments["born"] < 0, -1, order.index(order.taken))
    return {
        "device_idx": np.full(count, device),
        "address": segments["address"],
        "bytes": segments["bytes"],
        "stream": np.zeros(count, np.int64),
        "pool": _label(np.where(segments["small"] == 1, 0, 1), ("small", "large", "expandable")),
        "alloc_index": index,
        "alloc_ns": _maybe(order.time_ns(order.taken), index < 0),
    }


_READINGS = (
    ("open", 0, 0.0),
    ("step_end", 1, 2.0),
    ("step_end", 2, 3.0),
    ("step_end", 3, 4.0),
    ("close", 3, 4.01),
    ("exit", 8, 9.0),
)


def _counter_rows(lives: Blocks, segments: dict[str, np.ndarray], order: Order, device: int) -> dict[str, Any]:
    by_birth, by_end = np.argsort(lives.born), np.argsort(lives.given_back)
    change = np.concatenate([lives.bytes[by_birth], -lives.bytes[by_end]])
    keys = np.concatenate([lives.born[by_birth], lives.given_back[by_end]])
    sequence = np.argsort(keys, kind="stable")
    highest = np.maximum.accumulate(np.concatenate([[0], np.cumsum(change[sequence])]))
    rows: dict[str, list[int]] = {name: [] for name in TABLES["counters"].column_names}
    for reason, step, key in _READINGS:
        live, active = ((lives.born < key) & (end >= key) for end in (lives.given_back, lives.completed))
        allocated = int(lives.bytes[live].sum())
        reserved = int(segments["bytes"][segments["born"] < key].sum()) if device >= 0 else allocated
        peak = int(highest[np.searchsorted(keys[sequence], key)])
        values = {
            "t_ns": int(order.time_ns(key)),
            "device_idx": device,
            "step": step,
            "reason": REASONS.index(reason),
            "event_index": order.last_before(key),
            "alloc_count": int((lives.born < key).sum()),
            "free_count": int((lives.given_back < key).sum()),
            "allocated_bytes": allocated,
            "requested_bytes": int(lives.requested[live].sum()),
            "active_bytes": int(lives.bytes[active].sum()),
            "reserved_bytes": reserved,
            "peak_allocated_bytes": peak,
            "peak_reserved_bytes": reserved if device >= 0 else peak,
        }
        for name, value in values.items():
            rows[name].append(value)
    exits = np.array([reason == "exit" for reason, _, _ in _READINGS])
    columns: dict[str, Any] = dict(rows)
    columns["reason"] = _label(np.array(rows["reason"]), REASONS)
    columns["event_index"] = _maybe(np.array(rows["event_index"]), exits)
    return columns


def _used_bytes(segments: dict[str, np.ndarray]) -> np.ndarray:
    reserved = [int(segments["bytes"][segments["born"] < key].sum()) for _, _, key in _READINGS]
    return np.array(reserved) + CONTEXT_BYTES + LIBRARY_BYTES + OTHER_PROCESS_BYTES + UNACCOUNTED_BYTES


def _sample_rows(segments: dict[str, np.ndarray], order: Order) -> dict[str, Any]:
    count = len(_READINGS)
    return {
        "t_ns": order.time_ns(np.array([key for _, _, key in _READINGS])),
        "device_idx": np.zeros(count, np.int32),
        "used_bytes": _used_bytes(segments),
        "driver_bytes": np.full(count, DRIVER_BYTES),
        "total_bytes": np.full(count, TOTAL_BYTES),
    }


def _process_rows(segments: dict[str, np.ndarray], order: Order) -> dict[str, Any]:
    count = len(_READINGS)
    own = _used_bytes(segments) - OTHER_PROCESS_BYTES - UNACCOUNTED_BYTES
    times = order.time_ns(np.array([key for _, _, key in _READINGS]))
    return {
        "t_ns": np.concatenate([times, times]),
        "device_idx": np.zeros(2 * count, np.int32),
        "pid": np.repeat([PID, OTHER_PID], count),
        "bytes": np.concatenate([own, np.full(count, OTHER_PROCESS_BYTES)]),
    }


def _step_rows(order: Order, device: int) -> dict[str, Any]:
    step = np.arange(1, ALL_STEPS + 1)
    recorded = step <= RECORDED_STEPS
    bounds = np.array([order.last_before(float(key)) for key in range(1, ALL_STEPS + 2)])
    return {
        "step": step,
        "device_idx": np.full(step.size, device),
        "kind": _label(np.zeros(step.size), STEP_KINDS),
        "recorded": recorded,
        "start_ns": order.time_ns(step.astype(float)),
        "end_ns": order.time_ns(step + 1.0) + 1_000_000 * (step % 3),
        "paused_ns": np.where(recorded, PAUSE_NS, 0),
        "start_index": _maybe(bounds[:-1] + 1, ~recorded),
        "end_index": _maybe(bounds[1:], ~recorded),
    }


def _span_rows(order: Order, device: int) -> dict[str, Any]:
    spans = [("setup", 0, 0.0, 1.0)] + [
        (phase, step, step + start, step + end) for step in range(1, RECORDED_STEPS + 1) for phase, start, end in SPANS
    ]
    first = np.array([order.last_before(start) + 1 for _, _, start, _ in spans])
    last = np.array([order.last_before(end) for _, _, _, end in spans])
    return {
        "device_idx": np.full(len(spans), device),
        "kind": _label(np.zeros(len(spans)), ("phase",)),
        "start_ns": order.time_ns(np.array([span[2] for span in spans])),
        "end_ns": order.time_ns(np.array([span[3] for span in spans])),
        "start_index": _maybe(first, last < first),
        "end_index": _maybe(last, last < first),
        "phase": _label(np.array([PHASES.index(span[0]) for span in spans]), PHASES),
        "step": np.array([span[1] for span in spans], np.int32),
    }


def _module_paths(count: int, hostile_names: bool) -> list[str]:
    """Return paths of a tree with up to six children a module; the outermost one's is its class."""
    pieces = HOSTILE if hostile_names else PIECES
    paths: list[str] = []
    for number in range(count):
        parent = (number - 1) // len(pieces)
        piece = pieces[(number - 1) % len(pieces)]
        paths.append("Net" if number == 0 else piece if parent == 0 else f"{paths[parent]}.{piece}")
    return paths


def _module_rows(paths: list[str], modules: int) -> dict[str, Any]:
    arity = len(HOSTILE) if any("script" in path for path in paths) else len(PIECES)
    number = np.arange(modules)
    parent = (number - 1) // arity
    depth = [0] * modules
    for child in range(1, modules):
        depth[child] = depth[parent[child]] + 1
    return {
        "module_id": number,
        "parent_id": pa.array(parent.astype(np.int32), mask=number == 0),
        "path": paths,
        "class_name": ["Net" if k == 0 else f"Layer{k % 5}" for k in range(modules)],
        "root_id": np.zeros(modules, np.int32),
        "depth": depth,
        "compiled": np.zeros(modules, bool),
    }


def _stack_rows() -> dict[str, Any]:
    return {
        "stack_id": np.repeat(np.arange(20), 3),
        "frame_idx": np.tile(np.arange(3), 20),
        "file": ["train.py"] * 60,
        "line": np.arange(60),
        "function": ["forward", "step", "main"] * 20,
    }


def _run_manifest(hostile_names: bool) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "gpuledger_version": "0.1.0",
        "name": HOSTILE[0] if hostile_names else "synthetic",
        "command": ["python", HOSTILE[0] if hostile_names else "train.py"],
        "started_ns": START_NS,
        "ended_ns": START_NS + 9 * STEP_NS,
        "exit_status": 0,
        "status": "complete",
        "settings": {"steps": {"value": "1:3", "origin": "default"}},
        "notes": [],
    }


def _rank_manifest(rank: int, cuda: bool) -> dict[str, Any]:
    card = {"device_idx": 0, "name": "NVIDIA H200", "total_bytes": TOTAL_BYTES, "driver_version": "580.159"}
    facts: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "rank": rank,
        "pid": PID,
        "recorder": "cuda-history" if cuda else "dispatch",
        "devices": [card if cuda else {"device_idx": -1, "name": "CPU", "total_bytes": 64 * GIB}],
        "torch_version": "2.11.0",
        "python_version": "3.12.3",
        "allocator_settings": {},
        "status": "closed",
        "window": {"first_step": 1, "last_step": RECORDED_STEPS, "asked": [1, RECORDED_STEPS]},
        "steps_seen": ALL_STEPS,
        "notes": [],
        "damaged": [],
        "pauses": [
            {"reason": "step_end", "start_ns": START_NS + step * STEP_NS, "duration_ns": PAUSE_NS}
            for step in range(1, RECORDED_STEPS + 1)
        ],
        "checks": [],
        "oom": [],
        "recorder_bytes": 4 * MIB,
        "stacks": True,
    }
    if cuda:
        measured = {"context_bytes": CONTEXT_BYTES, "library_bytes": LIBRARY_BYTES, "source": "measured apart"}
        facts |= {"cuda_version": "13.0", "libraries": measured}
    return facts
