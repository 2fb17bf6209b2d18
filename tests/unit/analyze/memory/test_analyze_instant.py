from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from synthetic import load_run
from synthetic_lives import STEP_NS

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak, resolve_instant, step_range
from gpuledger.analyze.memory.lifetimes import pick_device
from gpuledger.errors import EmptyRunError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gpuledger.model.run import Rank


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Rank:
    return load_run(tmp_path_factory.mktemp("runs") / "one.ledger").rank()


def test_the_peak_is_the_allocators_own(rank: Rank) -> None:
    peak = find_peak(rank)
    assert break_down(rank, peak).allocated_bytes == max(rank.table("counters")["peak_allocated_bytes"].to_pylist())
    assert peak.label == "peak"
    assert peak.phase in ("forward", "backward")
    assert peak.step in (1, 2, 3)
    assert peak.module in rank.table("modules")["path"].to_pylist()
    row = next(row for row in rank.table("blocks").to_pylist() if row["alloc_index"] == peak.index)
    assert (row["alloc_ns"], row["phase"], row["step"]) == (peak.t_ns, peak.phase, peak.step)


def test_a_steps_peak_lies_in_the_step_and_the_highest_is_the_peak(rank: Rank) -> None:
    heights = {}
    for step in (1, 2, 3):
        instant = find_peak(rank, step=step)
        first, last = step_range(rank, 0, step)
        assert first <= instant.index <= last
        assert instant.step == step
        heights[step] = break_down(rank, instant).allocated_bytes
    assert max(heights.values()) == break_down(rank, find_peak(rank)).allocated_bytes


def test_the_end_holds_what_the_closing_counters_say(rank: Rank) -> None:
    closing = next(row for row in rank.table("counters").to_pylist() if row["reason"] == "close")
    breakdown = break_down(rank, resolve_instant(rank, "end"))
    assert breakdown.allocated_bytes == closing["allocated_bytes"]
    assert breakdown.requested_bytes == closing["requested_bytes"]
    assert breakdown.active_bytes == closing["active_bytes"]
    assert breakdown.reserved_bytes == closing["reserved_bytes"]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_the_end_of_a_step_holds_what_its_counters_say(rank: Rank, step: int) -> None:
    reading = next(
        row for row in rank.table("counters").to_pylist() if (row["reason"], row["step"]) == ("step_end", step)
    )
    breakdown = break_down(rank, resolve_instant(rank, "end", step=step))
    assert breakdown.allocated_bytes == reading["allocated_bytes"]
    assert breakdown.active_bytes == reading["active_bytes"]


def test_a_time_counts_from_the_opening_or_from_the_step(rank: Rank) -> None:
    late = resolve_instant(rank, "375ms")
    assert (late.step, late.label) == (1, "375ms")
    assert late.t_ns <= int(rank.manifest.pauses[0].start_ns) + STEP_NS // 2
    assert resolve_instant(rank, "125ms", step=1).index == late.index
    after = [row["alloc_index"] for row in rank.table("blocks").to_pylist() if (row["alloc_ns"] or 0) > late.t_ns]
    assert min(after) > late.index


def test_time_zero_is_the_state_at_the_opening(rank: Rank) -> None:
    opening = rank.table("counters").to_pylist()[0]
    first = resolve_instant(rank, "0s")
    assert break_down(rank, first).allocated_bytes >= opening["allocated_bytes"]
    assert (first.step, first.phase) == (0, "setup")


@pytest.mark.parametrize("at", ["pique", "1.5", "-3s", "", "5 parsecs", "1h"])
def test_an_unknown_instant_is_refused_with_what_would_do(rank: Rank, at: str) -> None:
    with pytest.raises(UsageError) as raised:
        resolve_instant(rank, at)
    assert raised.value.message.startswith(f"--at {at}")
    assert raised.value.hint


def test_an_unrecorded_step_and_an_unknown_device_are_refused(rank: Rank) -> None:
    with pytest.raises(UsageError, match="step 7 was not recorded") as raised:
        find_peak(rank, step=7)
    assert raised.value.hint == "Choose a recorded step: 1, 2, 3"
    with pytest.raises(UsageError, match="no device cuda:3"):
        find_peak(rank, 3)
    assert pick_device(rank) == 0


def test_an_empty_run_says_so(tmp_path: Path) -> None:
    empty = load_run(tmp_path / "none.ledger", blocks=0).rank()
    for ask in (find_peak, resolve_instant):
        with pytest.raises(EmptyRunError, match=r"none.ledger: rank 0: no allocation"):
            ask(empty)


@pytest.mark.parametrize("cuda", [True, False])
def test_one_block_is_enough(tmp_path: Path, cuda: bool) -> None:
    one = load_run(tmp_path / "one.ledger", blocks=1, modules=1, cuda=cuda).rank()
    peak = find_peak(one)
    size = one.table("blocks")["allocated_bytes"][0].as_py()
    assert (peak.device_idx, peak.index >= 0, peak.phase) == (0 if cuda else -1, True, "setup")
    assert break_down(one, peak).allocated_bytes == size
    assert resolve_instant(one, "end").index >= peak.index
