"""A pool of captured CUDA graphs holds what its capture allocated, also after the capture has freed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpuledger.analyze.memory.graph_pools import graph_pool_notes, graph_pools, kept_free_bytes
from gpuledger.analyze.overview.balance import build_balance
from gpuledger.analyze.overview.findings import find_findings
from gpuledger.analyze.overview.iteration import summarize_iteration
from gpuledger.analyze.overview.summary import summarize
from gpuledger.model.manifest import RankManifest
from gpuledger.model.pools import GraphPoolFacts
from gpuledger.model.run import KeptRank
from gpuledger.model.schema.tables import SCHEMA_VERSION, TABLES

MIB = 1 << 20
Made = tuple[int, int, int | None, int | None, int]
"""Pool, allocation, free, module, MiB."""


Segment = tuple[int, int, int]
"""Address in MiB, MiB, pool."""


def rank_of(*made: Made, segments: tuple[Segment, ...] = (), older: bool = False) -> KeptRank:
    """Return a rank with blocks and segments. Blocks lie one after the other from the segments' first address."""
    place = np.cumsum([0, *(size for *_, size in made)]) * MIB
    rows = [
        {
            **{field.name: None if field.nullable else 0 for field in TABLES["blocks"].arrow_schema()},
            **{"pool_id": pool, "alloc_index": born, "free_requested_index": freed, "free_index": freed},
            **{
                "address": int(address),
                "module_id": module,
                "requested_bytes": size * MIB,
                "allocated_bytes": size * MIB,
            },
            **{"phase": "forward", "category": "activation"},
        }
        for address, (pool, born, freed, module, size) in zip(place, made, strict=False)
    ]
    taken = [
        {
            **{field.name: None if field.nullable else 0 for field in TABLES["segments"].arrow_schema()},
            **{"address": address * MIB, "bytes": size * MIB, "alloc_index": -1, "pool": "large"},
        }
        for address, size, _ in segments
    ]
    told = tuple(
        GraphPoolFacts(
            device_idx=0,
            pool_id=number,
            segments=tuple((address * MIB, size * MIB) for address, size, pool in segments if pool == number),
            is_older=older,
        )
        for number in sorted({pool for *_, pool in segments if pool})
    )
    modules: list[dict[str, Any]] = [
        {"module_id": 0, "parent_id": None, "path": "Net", "class_name": "Net", "root_id": 0, "depth": 0},
        {"module_id": 1, "parent_id": 0, "path": "fc", "class_name": "Linear", "root_id": 0, "depth": 1},
    ]
    tables = {
        "blocks": pa.Table.from_pylist(rows, TABLES["blocks"].arrow_schema()),
        "modules": pa.Table.from_pylist([{**m, "compiled": False} for m in modules], TABLES["modules"].arrow_schema()),
        "segments": pa.Table.from_pylist(taken, TABLES["segments"].arrow_schema()),
    }
    manifest = RankManifest(schema_version=SCHEMA_VERSION, graph_pools=told if segments else None)
    return KeptRank(0, Path(), manifest, tables=tables)


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
    assert "keep 12.0 MiB for replays in pool (3, 0). 11.0 MiB of it is not allocated" in note
    assert "fc 8.0 MiB, (outside modules) 4.0 MiB" in note
    assert note in summarize(rank_of(*CAPTURE), 0).notes


def test_a_capture_before_the_recording_is_said() -> None:
    (note,) = graph_pool_notes(rank_of((2, -1, None, 1, 8), (2, 0, 1, 1, 1)), 0)
    assert note.endswith("Graphs were captured before the recording, so the pool can hold more.")


def test_pools_of_the_program_and_a_run_without_graphs_have_no_note() -> None:
    assert graph_pool_notes(rank_of((-1, 0, 1, 1, 8), (0, 2, 3, 1, 8)), 0) == []
    assert graph_pools(rank_of((0, 0, None, 1, 8)), 0) == ()


def test_a_pool_made_by_a_handle_counts_if_a_graph_uses_it() -> None:
    captured = ((-5, 0, 2, 1, 8), (-5, 1, 3, None, 4), (-6, 2, None, 0, 2))
    (pool,) = graph_pools(rank_of(*captured, segments=((0, 20, -5), (20, 20, 0))), 0)
    assert (pool.pool_id, pool.held_bytes, pool.reserved_bytes, pool.is_complete) == (-5, 12 * MIB, 20 * MIB, True)
    assert graph_pools(rank_of(*captured), 0) == ()  # it could be a MemPool


def test_a_pool_of_older_graphs_keeps_its_segments_and_says_what_is_unknown() -> None:
    rank = rank_of((3, -1, None, 1, 8), segments=((0, 20, 3),), older=True)
    (note,) = graph_pool_notes(rank, 0)
    assert note == (
        "CUDA graphs keep 20.0 MiB for replays in pool (3, 0). 12.0 MiB of it is not allocated, but other tensors "
        "cannot use it. Largest modules: fc 8.0 MiB. Graphs were captured before the recording, so the modules of "
        "freed memory are unknown."
    )
    nothing_left = rank_of((0, 0, None, 1, 4), segments=((0, 4, 0), (100, 20, -7)), older=True)
    (note,) = graph_pool_notes(nothing_left, 0)
    assert note.startswith("CUDA graphs keep 20.0 MiB for replays in pool (0, 7). 20.0 MiB of it is not allocated")
    assert "Largest" not in note


def fragmentation_bytes(rank: KeptRank) -> int | None:
    (found,) = [one for one in find_findings(rank) if "never in use" in one.title]
    return found.saving_bytes


SEGMENTS: tuple[Segment, ...] = ((0, 12, 3), (40, 40, 3), (12, 10, 0), (100, 8, 0))


def test_free_memory_of_a_pool_is_a_line_of_its_own_and_no_fragmentation() -> None:
    blocks: tuple[Made, ...] = ((3, 0, 2, 1, 8), (3, 1, None, None, 4), (0, 3, None, 1, 1))
    rank = rank_of(*blocks, segments=SEGMENTS)
    assert kept_free_bytes(rank, 0, 3).tolist() == [8 * MIB, 40 * MIB, 0, 0]
    assert kept_free_bytes(rank, 0, 1).tolist() == [0, 40 * MIB, 0, 0]
    found = {line.name: line.bytes for line in build_balance(rank, 0, "end").lines}
    cached = {"graph_pools": 48, "free_segments": 8, "fragmented": 9, "awaiting_free": 0, "allocated": 5}
    assert {name: found[name] for name in cached} == {name: size * MIB for name, size in cached.items()}
    assert fragmentation_bytes(rank) == 10 * MIB
    (iteration,) = summarize_iteration(rank, ())
    assert dict(iteration.beyond)["fragmented"] == 40 * MIB  # of graphs, at the peak
    unknown = rank_of(*blocks, segments=tuple((address, size, 0) for address, size, _ in SEGMENTS))
    assert "graph_pools" not in {line.name for line in build_balance(unknown, 0, "end").lines}
    assert fragmentation_bytes(unknown) == 58 * MIB
