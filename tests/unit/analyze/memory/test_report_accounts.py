"""The accounts at many instants: each equals what is counted at that instant alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from synthetic import load_run

from gpuledger.analyze.memory.account_series import (
    OUTSIDE,
    AccountSeries,
    build_account_series,
    choose_instants,
    keep_instants,
)
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak, module_paths, resolve_instant
from gpuledger.analyze.memory.timeline import Timeline, build_timeline
from gpuledger.model.accounts import ROUNDING

if TYPE_CHECKING:
    from pathlib import Path

    from gpuledger.model.run import Rank

Parts = tuple["Rank", Timeline, AccountSeries]


@pytest.fixture(params=["card", "cpu", "tiny"])
def breakdown(request: pytest.FixtureRequest, tmp_path: Path) -> Parts:
    shapes = {"card": {"blocks": 1500}, "cpu": {"blocks": 400, "cuda": False}, "tiny": {"blocks": 1, "modules": 1}}
    rank = load_run(tmp_path / "run.ledger", **shapes[request.param]).ranks[0]
    timeline = build_timeline(rank)
    chosen = choose_instants(rank, timeline, find_peak(rank), 40)
    return rank, timeline, build_account_series(rank, timeline.device_idx, chosen)


def accounts_at(series: AccountSeries, rank: Rank, k: int) -> dict[tuple[str, str], int]:
    paths = module_paths(rank) | {OUTSIDE: ""}
    held: dict[tuple[str, str], int] = {}
    run = 0
    for module_id, code, count in zip(
        series.module_id.tolist(), series.category.tolist(), series.run_count.tolist(), strict=True
    ):
        for position in range(run, run + count):
            if series.first[position] <= k <= series.last[position]:
                held[series.categories[code], paths[module_id]] = int(series.bytes[position])
        run += count
    assert run == series.bytes.size
    return held


def test_every_instant_holds_what_is_counted_there_alone(breakdown: Parts) -> None:
    rank, _, series = breakdown
    for k, instant in enumerate(series.instants):
        alone = break_down(rank, instant, by=("category", "module"))
        expected = {(a.category, a.module): a.bytes for a in alone.accounts if a.category != ROUNDING and a.bytes}
        assert accounts_at(series, rank, k) == expected
        assert series.allocated_bytes[k] == alone.allocated_bytes
        assert series.rounding_bytes[k] == alone.allocated_bytes - alone.requested_bytes
        assert series.active_bytes[k] == alone.active_bytes
        assert series.reserved_bytes[k] == alone.reserved_bytes


def test_accounts_and_rounding_sum_to_allocated(breakdown: Parts) -> None:
    rank, _, series = breakdown
    for k in range(len(series.instants)):
        assert sum(accounts_at(series, rank, k).values()) + series.rounding_bytes[k] == series.allocated_bytes[k]


def test_instants_are_in_order_and_hold_peak_and_end(breakdown: Parts) -> None:
    rank, _, series = breakdown
    indices = [instant.index for instant in series.instants]
    times = [instant.t_ns for instant in series.instants]
    assert indices == sorted(set(indices))
    assert times == sorted(times)
    assert find_peak(rank).index in indices
    assert resolve_instant(rank, "end").index == indices[-1]


def test_a_block_allocated_at_an_instant_gives_its_place(breakdown: Parts) -> None:
    rank, _, series = breakdown
    blocks = rank.table("blocks", ("alloc_index", "step", "phase", "module_id"))
    at = {row["alloc_index"]: row for row in blocks.to_pylist() if row["alloc_index"] >= 0}
    paths = module_paths(rank) | {None: ""}
    placed = [instant for instant in series.instants if instant.index in at]
    assert placed
    for instant in placed:
        row = at[instant.index]
        module = "" if row["phase"] in ("setup", "between") else paths[row["module_id"]]
        assert (instant.step, instant.phase, instant.module) == (row["step"], row["phase"], module)


def test_the_most_wanted_instants_survive_a_small_limit(tmp_path: Path) -> None:
    rank = load_run(tmp_path / "run.ledger", blocks=1500).ranks[0]
    timeline, peak = build_timeline(rank), find_peak(rank)
    chosen = choose_instants(rank, timeline, peak, 5)
    assert len(chosen) == 5
    assert chosen[0] == peak
    assert chosen[1].label == "end"
    assert {instant.label for instant in chosen[2:]} <= {f"peak of step {step}" for step in (1, 2, 3)} | {
        "end of setup",
        "end of between, step 1",
        "end of forward, step 1",
    }


def test_any_beginning_of_the_instants_covers_the_whole_recording(tmp_path: Path) -> None:
    rank = load_run(tmp_path / "run.ledger", blocks=1500).ranks[0]
    timeline = build_timeline(rank)
    unlabelled = [i.t_ns for i in choose_instants(rank, timeline, find_peak(rank), 80) if not i.label][:16]
    lasted_ns = timeline.t_ns[-1] - timeline.t_ns[0]
    gaps = np.diff(sorted([timeline.t_ns[0], *unlabelled, timeline.t_ns[-1]]))
    assert gaps.max() < lasted_ns / 5


def test_fewer_instants_hold_the_same_accounts(breakdown: Parts) -> None:
    rank, timeline, series = breakdown
    wanted = choose_instants(rank, timeline, find_peak(rank), 40)[:7]
    fewer = keep_instants(series, wanted)
    assert {instant.index for instant in fewer.instants} == {instant.index for instant in wanted}
    for k, instant in enumerate(fewer.instants):
        before = series.instants.index(instant)
        assert accounts_at(fewer, rank, k) == accounts_at(series, rank, before)
        assert fewer.allocated_bytes[k] == series.allocated_bytes[before]


def test_each_steps_peak_is_that_steps_highest(tmp_path: Path) -> None:
    rank = load_run(tmp_path / "run.ledger", blocks=1500).ranks[0]
    chosen = choose_instants(rank, build_timeline(rank), find_peak(rank), 40)
    by_label = {instant.label: instant.index for instant in chosen}
    overall = find_peak(rank)
    for step in (1, 2, 3):
        expected = find_peak(rank, step=step).index
        assert by_label.get(f"peak of step {step}") == expected or expected == overall.index
