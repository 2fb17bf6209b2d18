"""Times of ranks on clocks that are far apart: who waits for whom, and what is communication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpuledger.analyze.ranks.reading import RankLine
from gpuledger.analyze.ranks.waits import Waits, find_waits
from gpuledger.model.manifest import RankManifest
from gpuledger.model.run import KeptRank, Rank
from gpuledger.model.schema.tables import TABLES

MS = 1_000_000
HOUR = 3_600_000 * MS
NAMES = {"compute": 0, "ncclDevKernel_AllReduce": 1, "ncclDevKernel_AllGather": 2}


def rank(number: int, spans: list[tuple[str, float, float]], clock_ns: int, **facts: Any) -> Rank:
    """Return a rank with spans of name, start and end in ms; its clock is ahead by ``clock_ns``."""
    rows = []
    for name, start, end in spans:
        row: dict[str, Any] = {field.name: None for field in TABLES["spans"].arrow_schema()}
        row |= {"device_idx": 0, "kind": "collective" if "nccl" in name else "kernel", "name_id": NAMES[name]}
        row |= {
            "start_ns": int(start * MS) + clock_ns,
            "end_ns": int(end * MS) + clock_ns,
            "phase": "backward",
            "step": 3,
        }
        rows.append(row)
    tables = {
        "spans": pa.Table.from_pylist(rows, TABLES["spans"].arrow_schema()),
        "names": pa.table([list(NAMES.values()), list(NAMES)], schema=TABLES["names"].arrow_schema()),
    }
    manifest = RankManifest.from_json({"schema_version": 1, "rank": number, **facts})
    return KeptRank(number, Path(), manifest, tables=tables)


def line(number: int) -> RankLine:
    return RankLine(number, 0, "H200", "", "closed", 10, 1, 1, 1, 1, "backward", "", None, None)


def waits(*ranks: Rank) -> Waits | None:
    return find_waits(ranks, [line(rank.number) for rank in ranks])


def straggling(count: int = 3, slow: int = 2, **facts: Any) -> tuple[Rank, ...]:
    """Return ranks of which one reaches every collective 30 ms late; the collective itself takes 5 ms."""
    ranks = []
    for number in range(count):
        spans: list[tuple[str, float, float]] = []
        for begin in (0, 100):
            arrives = begin + 10 + (30 if number == slow else 0)
            spans += [("compute", begin, arrives), ("ncclDevKernel_AllReduce", arrives, begin + 45)]
        ranks.append(rank(number, spans, number * HOUR, **facts))
    return tuple(ranks)


def test_the_wait_belongs_to_the_rank_that_came_last() -> None:
    found = waits(*straggling())
    assert found is not None
    assert found.straggler is not None
    assert found.straggler.rank == 2
    assert found.uncertainty_ns == 0
    assert found.straggler.caused_wait_ns == pytest.approx(60 * MS)
    first, slow = found.ranks[0], found.ranks[2]
    assert (first.waiting_ns, first.exposed_communication_ns) == (60 * MS, 10 * MS)
    assert (slow.waiting_ns, slow.exposed_communication_ns, slow.came_last_frac) == (0, 10 * MS, 1.0)
    assert (first.compute_ns, slow.compute_ns) == (20 * MS, 80 * MS)


def test_communication_beside_computation_is_overlapped() -> None:
    spans: list[tuple[str, float, float]] = [("compute", 0, 20), ("ncclDevKernel_AllGather", 10, 30)]
    found = waits(rank(0, spans, 0), rank(1, spans, HOUR))
    assert found is not None
    assert found.straggler is None
    one = found.ranks[0]
    assert (one.overlapped_communication_ns, one.exposed_communication_ns, one.waiting_ns) == (10 * MS, 10 * MS, 0)


def test_ranks_that_do_not_share_every_collective_are_not_matched() -> None:
    mesh = {"names": ["dp", "tp"], "shape": [2, 2], "coordinate": [0, 0]}
    assert waits(*straggling(mesh=mesh)) is None


def test_a_rank_without_collectives_gives_no_times() -> None:
    assert waits(*straggling(2), rank(2, [("compute", 0, 10)], 0)) is None


def test_a_collective_that_one_rank_did_not_profile_is_left_out() -> None:
    _first, second, slow = straggling()
    extra = rank(0, [("compute", 0, 10), ("ncclDevKernel_AllReduce", 10, 45)], 0)
    found = waits(extra, second, slow)
    assert found is not None
    assert found.collectives == 1
