"""Times of ranks on clocks that are far apart: who waits for whom, and what is communication."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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


Span = tuple[str, float, float] | tuple[str, float, float, int]


def rank(number: int, spans: list[Span], clock_ns: int, **facts: Any) -> Rank:
    """Return a rank with spans of name, start and end in ms, and step; its clock is ahead by ``clock_ns``."""
    rows = []
    for name, start, end, *step in spans:
        row: dict[str, Any] = {field.name: None for field in TABLES["spans"].arrow_schema()}
        row |= {"device_idx": 0, "kind": "collective" if "nccl" in name else "kernel", "name_id": NAMES[name]}
        row |= {
            "start_ns": int(start * MS) + clock_ns,
            "end_ns": int(end * MS) + clock_ns,
            "phase": "backward",
            "step": step[0] if step else 3,
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
        spans: list[Span] = []
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
    spans: list[Span] = [("compute", 0, 20), ("ncclDevKernel_AllGather", 10, 30)]
    found = waits(rank(0, spans, 0), rank(1, spans, HOUR))
    assert found is not None
    assert found.straggler is None
    one = found.ranks[0]
    assert (one.overlapped_communication_ns, one.exposed_communication_ns, one.waiting_ns) == (10 * MS, 10 * MS, 0)


def test_ranks_that_do_not_share_every_collective_are_not_matched() -> None:
    mesh = {"names": ["dp", "tp"], "shape": [2, 2], "coordinate": [0, 0]}
    assert waits(*straggling(mesh=mesh)) is None


def test_groups_of_some_ranks_without_a_mesh_are_not_matched() -> None:
    def in_group(number: int, step_ms: float) -> Rank:
        spans: list[Span] = []
        for begin in (step_ms * step for step in range(9)):
            spans += [("compute", begin, begin + 10), ("ncclDevKernel_AllReduce", begin + 10, begin + 15)]
        return rank(number, spans, 0)

    assert waits(in_group(0, 100), in_group(1, 100), in_group(2, 130), in_group(3, 130)) is None
    assert waits(in_group(0, 100), in_group(1, 100)) is not None


def test_a_collective_of_some_ranks_among_those_of_all_is_left_out() -> None:
    begins = [100.0 * step for step in range(6)]

    def taking_part(number: int, early_ms: float) -> Rank:
        spans: list[Span] = []
        for begin in begins:
            spans += [("ncclDevKernel_AllReduce", begin + 10, begin + 15)]
            spans += [("ncclDevKernel_AllGather", begin + 40 - early_ms, begin + 45 - early_ms)] if begin < 200 else []
        return rank(number, spans, number * HOUR)

    found = waits(taking_part(0, 0), taking_part(1, 20))
    assert found is not None
    assert found.collectives == len(begins)
    assert all(one.waiting_ns == 0 for one in found.ranks)


def test_a_rank_without_collectives_gives_no_times() -> None:
    assert waits(*straggling(2), rank(2, [("compute", 0, 10)], 0)) is None


def test_a_collective_that_one_rank_did_not_profile_is_left_out() -> None:
    _first, second, slow = straggling()
    extra = rank(0, [("compute", 0, 10), ("ncclDevKernel_AllReduce", 10, 45)], 0)
    found = waits(extra, second, slow)
    assert found is not None
    assert found.collectives == 1


BUCKETS, FORWARD_MS, BUCKET_MS, TRANSFER_MS = 40, 30.0, 1.5, 0.4


def train(
    count: int,
    late_ms: Callable[[int, int], float],
    steps: int = 3,
    jitter_ms: float = 0.0,
    *,
    is_overlapped: bool,
    paused: int | None = None,
) -> Waits:
    """Return the waits of simulated ranks of DistributedDataParallel.

    Args:
        count: Number of ranks.
        late_ms: By how much a rank begins a step late, by rank and step.
        steps: Number of profiled steps.
        jitter_ms: Mean of the time by which a rank computes each bucket's gradients later.
        is_overlapped: The collectives have a stream of their own, as in DistributedDataParallel; else that of the
            computation, as in a communication hook that waits.
        paused: A step at whose begin the recorder paused rank 0.
    """
    random, everywhere = np.random.default_rng(count), range(count)
    spans: list[list[Span]] = [[] for _ in everywhere]
    now, pauses = [0.0] * count, []
    for step in range(steps):
        if step == paused:
            pauses.append({"reason": "time", "start_ns": int(now[0] * MS), "duration_ns": 1})
        free = now = [max(now) + late_ms(one, step) for one in everywhere]
        for bucket in range(BUCKETS):
            took = BUCKET_MS + (FORWARD_MS if bucket == 0 else 0)
            ready = [time + took + random.exponential(jitter_ms) for time in now]
            begin = [max(ready[one], free[one]) for one in everywhere]
            end = max(begin) + TRANSFER_MS
            for one in everywhere:
                spans[one].append(("compute", now[one], ready[one], step))
                spans[one].append(("ncclDevKernel_AllReduce", begin[one], end, step))
            free, now = [end] * count, ready if is_overlapped else [end] * count
        now = [max(pair) + 5 for pair in zip(free, now, strict=True)]
        for one in everywhere:
            spans[one].append(("compute", now[one] - 5, now[one], step))
    facts: list[dict[str, Any]] = [{"pauses": pauses}, *({} for _ in everywhere)]
    found = waits(*(rank(one, spans[one], one * HOUR, **facts[one]) for one in everywhere))
    assert found is not None
    return found


@pytest.mark.parametrize("is_overlapped", [True, False])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_rank_that_begins_each_step_late_is_the_straggler(count: int, is_overlapped: bool) -> None:
    found = train(count, lambda one, _: 30.0 * (one == 1), jitter_ms=0.02, is_overlapped=is_overlapped)
    assert found.straggler is not None
    assert found.straggler.rank == 1
    assert found.straggler.caused_wait_frac > 0.7
    first, slow = found.ranks[:2]
    transfers_ns = first.exposed_communication_ns - slow.exposed_communication_ns
    assert transfers_ns == pytest.approx(30 / BUCKET_MS * TRANSFER_MS * MS * is_overlapped, rel=0.1, abs=1e-3)
    assert first.waiting_ns + transfers_ns == pytest.approx(30 * MS, rel=0.1)
    assert found.straggler.caused_wait_ns == pytest.approx(first.waiting_ns, rel=0.1)
    assert first.busy_ns == pytest.approx(max(one.busy_ns for one in found.ranks), rel=0.02)


@pytest.mark.parametrize("is_overlapped", [True, False])
@pytest.mark.parametrize("unusual", [0, 1, 2])
def test_a_rank_that_is_late_in_one_step_is_not_the_straggler(unusual: int, is_overlapped: bool) -> None:
    once = train(2, lambda one, step: 90.0 * (one == 0 and step == unusual), is_overlapped=is_overlapped)
    assert once.straggler is None
    both = train(2, lambda one, step: 30.0 if one else 90.0 * (step == unusual), is_overlapped=is_overlapped)
    assert both.straggler is (None if unusual else both.ranks[1])


def test_steps_before_which_the_recorder_paused_are_left_out() -> None:
    def late_ms(one: int, step: int) -> float:
        return 30.0 if one else (90.0, 90.0, 0.0, 0.0)[step]

    found = train(2, late_ms, steps=4, is_overlapped=False)
    assert (found.steps, found.straggler) == ((1, 2, 3), found.ranks[1])
    assert train(2, late_ms, steps=3, is_overlapped=False).straggler is None
    paused = train(2, late_ms, steps=3, is_overlapped=False, paused=1)
    assert (paused.steps, paused.straggler) == ((2,), paused.ranks[1])
    assert train(2, late_ms, steps=1, is_overlapped=False).steps == (0,)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_ranks_that_come_last_by_chance_are_no_stragglers(count: int) -> None:
    found = train(count, lambda *_: 0.0, jitter_ms=0.3, is_overlapped=False)
    assert found.ranks[0].waiting_ns > MS
    assert found.straggler is None


def test_a_rank_is_no_straggler_for_less_than_a_hundredth_of_a_step() -> None:
    assert train(2, lambda one, _: 0.5 * one, is_overlapped=False).straggler is None


def test_a_wait_beside_which_the_rank_computes_costs_nothing() -> None:
    compute: list[Span] = [("compute", 0, 50)]
    found = waits(
        rank(0, [*compute, ("ncclDevKernel_AllReduce", 10, 55)], 0),
        rank(1, [*compute, ("ncclDevKernel_AllReduce", 40, 55)], HOUR),
    )
    assert found is not None
    assert found.straggler is None
    one = found.ranks[0]
    assert (one.waiting_ns, one.overlapped_communication_ns, one.exposed_communication_ns) == (0, 40 * MS, 5 * MS)


def test_waits_of_collectives_at_the_same_time_count_once() -> None:
    early: list[Span] = [("ncclDevKernel_AllReduce", 0, 30), ("ncclDevKernel_AllGather", 10, 40)]
    late: list[Span] = [("ncclDevKernel_AllReduce", 20, 30), ("ncclDevKernel_AllGather", 30, 40)]
    found = waits(rank(0, early, 0), rank(1, late, 0))
    assert found is not None
    first = found.ranks[0]
    assert (first.waiting_ns, first.exposed_communication_ns) == (30 * MS, 10 * MS)
