"""Runs of many ranks that consist of summaries only, with planted differences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpuledger.model.run import write_table
from gpuledger.model.run_directory import write_json
from gpuledger.model.schema.tables import SCHEMA_VERSION, TABLES

MIB = 1 << 20
CATEGORIES = ("sharded_weight", "activation", "gradient")


def make_summaries(
    path: Path,
    ranks: int,
    modules: int,
    *,
    planted: dict[tuple[int, str, str], int] | None = None,
    mesh: dict[str, int] | None = None,
    energies_j: Sequence[float | None] | None = None,
) -> Path:
    """Return ``path`` after writing a run of ranks with summaries.

    Args:
        path: The run's directory.
        ranks: Number of ranks.
        modules: Number of modules of each rank.
        planted: Rank, category and module -> bytes, in place of what other ranks have.
        mesh: Name -> size of each dimension of the device mesh; their product is ``ranks``.
        energies_j: Energy of a step on each rank, None if it is unknown; 100 J on each if not given.
    """
    path.mkdir(parents=True)
    write_json(path / "manifest.json", {"schema_version": SCHEMA_VERSION, "status": "finished", "command": ["train"]})
    names = [f"layers.{number}" for number in range(modules)]
    category = pa.DictionaryArray.from_arrays((np.arange(modules) % 3).astype(np.int8), pa.array(CATEGORIES))
    usual = (np.arange(modules, dtype=np.int64) % 7 + 1) * 8 * MIB
    for rank in range(ranks):
        size = usual + np.random.default_rng(rank).integers(0, MIB // 8, modules)
        for (where, _, module), planted_bytes in (planted or {}).items():
            if where == rank:
                size[names.index(module)] = planted_bytes
        energy_j = 100.0 if energies_j is None else energies_j[rank]
        _write_rank(path / f"rank-{rank}", rank, _place(rank, mesh or {}), (names, category, size), energy_j)
    return path


def _place(rank: int, mesh: dict[str, int]) -> dict[str, int]:
    place = {}
    for name, size in reversed(mesh.items()):
        rank, place[name] = divmod(rank, size)
    return {name: place[name] for name in mesh}


def _write_rank(
    directory: Path, rank: int, place: dict[str, int], breakdown: tuple[Any, Any, Any], energy_j: float | None
) -> None:
    names, category, size = breakdown
    total = int(size.sum())
    facts: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "rank": rank, "status": "closed", "steps_seen": 10}
    directory.mkdir()
    write_json(directory / "manifest.json", facts)
    row = {
        "device_idx": 0,
        "device_name": "NVIDIA H200",
        "coordinate": ",".join(f"{name}={number}" for name, number in place.items()),
        "status": "closed",
        "steps_seen": 10,
        "peak_allocated_bytes": total,
        "recorded_peak_allocated_bytes": total,
        "peak_reserved_bytes": total + 64 * MIB,
        "peak_step": 2,
        "peak_phase": "backward",
        "peak_module": "layers.1",
        "step_time_ns": 250_000_000,
        "step_energy_j": energy_j,
    }
    nothing = pa.nulls(size.size)
    columns = [np.zeros(size.size, np.int32), category, names, size, nothing, nothing, nothing]
    schema = TABLES["breakdown"].arrow_schema()
    table = pa.table([pa.array(one) if not isinstance(one, pa.Array) else one for one in columns], schema.names)
    write_table(directory, table.cast(schema), "breakdown")
    write_table(directory, pa.Table.from_pylist([row], TABLES["rank_summary"].arrow_schema()), "rank_summary")
