"""A pool of captured CUDA graphs holds what its capture allocated, also after the capture has freed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuledger.analyze.memory.graph_pools import graph_pool_notes, graph_pools
from gpuledger.analyze.overview.summary import summarize
from gpuledger.model.manifest import RankManifest
from gpuledger.model.run import KeptRank
from gpuledger.model.schema.tables import SCHEMA_VERSION, TABLES

MIB = 1 << 20
Made = tuple[int, int, int | None, int | None, int]
"""Pool, allocation, free, module, MiB."""


def rank_of(*made: Made) -> KeptRank:
    rows = [
        {
            **{field.name: None if field.nullable else 0 for field in TABLES["blocks"].arrow_schema()},
            **{"pool_id": pool, "alloc_index": born, "free_requested_index": freed, "free_index": freed},
            **{"module_id": module, "requested_bytes": size * MIB, "allocated_bytes": size * MIB},
            **{"phase": "forward", "category": "activation"},
        }
        for pool, born, freed, module, size in made
    ]
    modules: list[dict[str, Any]] = [
        {"module_id": 0, "parent_id": None, "path": "Net", "class_name": "Net", "root_id": 0, "depth": 0},
        {"module_id": 1, "parent_id": 0, "path": "fc", "class_name": "Linear", "root_id": 0, "depth": 1},
    ]
    tables = {
        "blocks": pa.Table.from_pylist(rows, TABLES["blocks"].arrow_schema()),
        "modules": pa.Table.from_pylist([{**m, "compiled": False} for m in modules], TABLES["modules"].arrow_schema()),
    }
    return KeptRank(0, Path(), RankManifest(schema_version=SCHEMA_VERSION), tables=tables)


CAPTURE: tuple[Made, ...] = (
    (3, 0, 2, 1, 8),
    (3, 1, 5, None, 4),
    (3, 3, 4, 1, 2),
    (3, 6, None, 0, 1),
    (0, 7, None, 1, 99),
)


def test_a_pool_holds_the_most_that_its_capture_allocated() -> None:
    (pool,) = graph_pools(rank_of(*CAPTURE), 0)
    assert (pool.pool_id, pool.held_bytes, pool.free_bytes) == (3, 12 * MIB, 11 * MIB)
    assert pool.modules == (("fc", 8 * MIB), ("", 4 * MIB))
    assert pool.is_complete


def test_it_is_said_that_free_blocks_of_a_pool_are_kept() -> None:
    (note,) = graph_pool_notes(rank_of(*CAPTURE), 0)
    assert "keep 12.0 MiB for replays in pool 3. 11.0 MiB of it is not allocated" in note
    assert "fc 8.0 MiB, (outside modules) 4.0 MiB" in note
    assert note in summarize(rank_of(*CAPTURE), 0).notes


def test_a_capture_before_the_recording_is_said() -> None:
    (note,) = graph_pool_notes(rank_of((2, -1, None, 1, 8), (2, 0, 1, 1, 1)), 0)
    assert note.endswith("Graphs were captured before the recording, so the pool can hold more.")


def test_pools_of_the_program_and_a_run_without_graphs_have_no_note() -> None:
    assert graph_pool_notes(rank_of((-1, 0, 1, 1, 8), (0, 2, 3, 1, 8)), 0) == []
    assert graph_pools(rank_of((0, 0, None, 1, 8)), 0) == ()
