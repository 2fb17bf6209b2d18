"""Recordings made on a real GPU, posted without one: every figure against the allocator's own and the program's."""

from __future__ import annotations

import pytest
from card_recordings import RECORDED, about, post_recording
from present import present

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.overview.balance import build_balance
from gpuledger.model.accounts import PHASES
from gpuledger.model.run import Rank

EXPECTED = ("gan", "gpt2", "lstm", "resnet50")


def test_the_four_recordings_are_there() -> None:
    assert EXPECTED == RECORDED


@pytest.fixture(scope="module", params=RECORDED)
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Rank]:
    return request.param, post_recording(request.param, tmp_path_factory.mktemp(request.param))


def test_every_check_against_the_allocator_holds(recording: tuple[str, Rank]) -> None:
    _, rank = recording
    names = {present(check.name) for check in rank.manifest.checks}
    assert "peak allocated bytes" in names
    assert "live blocks of the closing snapshot found with the same sizes" in names
    assert "allocations recorded" in names
    assert sum(name.startswith("allocated bytes at step_end") for name in names) == 3
    assert [check for check in rank.manifest.checks if not check.ok] == []


def test_the_peak_is_the_one_the_program_read_itself(recording: tuple[str, Rank]) -> None:
    name, rank = recording
    breakdown = break_down(rank, find_peak(rank))
    assert breakdown.allocated_bytes == about(name)["program"]["peak_allocated_bytes"]
    assert sum(account.bytes for account in breakdown.accounts) == breakdown.allocated_bytes


def test_nearly_every_byte_has_a_name(recording: tuple[str, Rank]) -> None:
    _, rank = recording
    breakdown = break_down(rank, find_peak(rank))
    other = sum(account.bytes for account in breakdown.accounts if account.category == "other")
    assert other <= breakdown.allocated_bytes // 100
    assert set(rank.table("blocks").column("phase").to_pylist()) <= set(PHASES)


def test_the_card_is_balanced(recording: tuple[str, Rank]) -> None:
    """Every used byte is in a line, and those that nothing explains are few."""
    _, rank = recording
    balance = build_balance(rank)
    lines = {line.name: line.bytes for line in balance.lines if line.level == 1}
    library_bytes = lines["library"] or 0  # with the context: not sampled before the first module call
    assert library_bytes >> 20 in (758, 762)
    assert balance.used_bytes == sum(size for size in lines.values() if size is not None)
    assert balance.process_bytes is not None
    assert -(2 << 20) <= (balance.unaccounted_bytes or 0) <= max(20 << 20, 0.01 * balance.process_bytes)


def test_weights_gradients_and_state_agree_in_size(recording: tuple[str, Rank]) -> None:
    _, rank = recording
    sizes = dict.fromkeys(("weight", "gradient", "optimizer_state"), 0)
    for row in rank.table("blocks").to_pylist():
        if row["category"] in sizes and row["free_requested_index"] is None:
            sizes[row["category"]] += row["requested_bytes"]
    assert sizes["weight"] > 0
    assert sizes["gradient"] in (0, sizes["weight"])
    assert sizes["optimizer_state"] >= sizes["weight"]


def test_the_last_step_kept_stacks(recording: tuple[str, Rank]) -> None:
    _, rank = recording
    rows = [row for row in rank.table("blocks").to_pylist() if row["step"] == 3]
    assert rows
    assert sum(row["stack_id"] is not None for row in rows) > 0.8 * len(rows)
