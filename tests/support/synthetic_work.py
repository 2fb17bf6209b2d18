"""The passes after the memory pass, for a run of ``synthetic``: kernels with owners, and readings of power."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from synthetic import load_run
from synthetic_lives import START_NS, STEP_NS

from gpuledger.model.accounts import PHASES
from gpuledger.model.manifest import read_json
from gpuledger.model.run import Run, read_run, write_table
from gpuledger.model.run_directory import write_json
from gpuledger.model.schema.tables import TABLES

if TYPE_CHECKING:
    from pathlib import Path

TIME_STEPS = (7, 8)
KINDS = ("kernel", "copy", "host")
KERNELS = ("gemm_kernel", "layer_norm_kernel", "Memcpy HtoD")
OPERATOR = "aten::linear"
SCOPES = ("encoder", "encoder/attention")
MAIN_STREAM, COPY_STREAM, THREAD = 7, 13, 1
PLAN = (("forward", 0.05, 0.4), ("backward", 0.42, 0.8), ("optimizer", 0.82, 0.9))
READINGS = 400
ENERGY = {
    "device_idx": 0,
    "first_step": 4,
    "last_step": 6,
    "energy_j": 300.0,
    "uncertainty_j": 6.0,
    "start_ns": START_NS + 4 * STEP_NS,
    "end_ns": START_NS + 7 * STEP_NS,
    "base_before_w": 118.0,
    "base_after_w": 122.0,
    "notes": [],
}
INPUTS = {"module_id": 0, "shape": [16, 64], "tokens": False}
WINDOW = {name: ENERGY[name] for name in ("device_idx", "start_ns", "end_ns", "energy_j", "uncertainty_j")}
WINDOW |= {"name": "energy pass", "ticks": 7, "throttled_ns": 0}


def load_timed(path: Path, *, modules: int = 30, spans: int = 200, host: bool = False, **shape: Any) -> Run:
    """Return a run of ``synthetic`` with a time pass of ``spans`` spans a step and, on a GPU, readings of power."""
    run = load_run(path, modules=modules, cuda=not host, **shape)
    for rank in run.ranks:
        names = rank.table("names").num_rows
        words = [*KERNELS, OPERATOR, *SCOPES]
        numbered = _table("names", {"name_id": names + np.arange(len(words)), "name": words})
        write_table(rank.directory, numbered, "names", 1)
        work = [_work(step, modules, spans, names, host) for step in TIME_STEPS]
        merged = {name: np.concatenate([part[name] for part in work]) for name in work[0]}
        write_table(rank.directory, _span_table(merged), "spans", 1)
        if not host:
            write_table(rank.directory, _table("samples", _readings()), "samples", 1)
            write_table(rank.directory, _table("windows", {name: [one] for name, one in WINDOW.items()}), "windows")
        place = rank.directory / "manifest.json"
        later = {"time_steps": list(TIME_STEPS), "passes": ["memory", "energy", "time"], "inputs": INPUTS}
        write_json(place, read_json(place) | later | ({} if host else {"energy": [ENERGY]}))
    return read_run(path)


def _work(step: int, modules: int, spans: int, first_name: int, host: bool) -> dict[str, np.ndarray]:
    """Return one step: modules in order forward, in reverse backward, the optimizer's outside, copies beside them."""
    each = max(1, spans // len(PLAN))
    rows: dict[str, list[np.ndarray]] = {}
    for phase, begin, end in PLAN:
        owner = np.arange(each) * modules // each
        module = {"forward": owner, "backward": modules - 1 - owner}.get(phase, np.full(each, -1))
        edges = START_NS + ((step + np.linspace(begin, end, each + 1)) * STEP_NS).astype(np.int64)
        length = np.maximum(1, (np.diff(edges) * 0.8).astype(np.int64))
        copies = (np.arange(each) % 10 == 9) & (not host)
        for name, column in {
            "device_idx": np.full(each, -1 if host else 0),
            "kind": np.where(copies, 1, 2 if host else 0),
            "name_id": first_name + np.where(copies, 2, np.arange(each) % 2),
            "start_ns": edges[:-1],
            "end_ns": edges[:-1] + length,
            "operator_id": np.full(each, first_name + len(KERNELS)),
            "module_id": module,
            "scope_id": np.where(module < 0, -1, first_name + len(KERNELS) + module % (len(SCOPES) + 1)),
            "phase": np.full(each, PHASES.index(phase)),
            "step": np.full(each, step),
            "stream": np.where(copies, COPY_STREAM, THREAD if host else MAIN_STREAM),
        }.items():
            rows.setdefault(name, []).append(column)
    return {name: np.concatenate(parts) for name, parts in rows.items()}


def _span_table(rows: dict[str, np.ndarray]) -> pa.Table:
    columns: dict[str, Any] = dict(rows)
    columns["kind"] = pa.DictionaryArray.from_arrays(pa.array(rows["kind"].astype(np.int8)), pa.array(KINDS))
    columns["phase"] = pa.DictionaryArray.from_arrays(pa.array(rows["phase"].astype(np.int8)), pa.array(PHASES))
    columns["module_id"] = pa.array(rows["module_id"].astype(np.int32), mask=rows["module_id"] < 0)
    unscoped = np.isin(rows["scope_id"], (-1, rows["operator_id"][0]))
    columns["scope_id"] = pa.array(rows["scope_id"].astype(np.int32), mask=unscoped)
    return _table("spans", columns)


def _readings() -> dict[str, Any]:
    times = START_NS + np.linspace(0.1, 9.0, READINGS) * STEP_NS
    watts = 420.0 + 180.0 * np.sin(np.linspace(0, 40, READINGS))
    watts[::50] = np.nan
    return {
        "t_ns": times.astype(np.int64),
        "device_idx": np.zeros(READINGS, np.int32),
        "power_instant_w": pa.array(watts, from_pandas=True),
        "power_average_w": np.full(READINGS, 410.0),
        "temperature_c": np.full(READINGS, 55, np.int32),
    }


def _table(name: str, columns: dict[str, Any]) -> pa.Table:
    schema = TABLES[name].arrow_schema()
    count = len(next(iter(columns.values())))
    return pa.table([columns.get(field.name, pa.nulls(count, field.type)) for field in schema], schema=schema)
