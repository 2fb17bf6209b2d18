"""The time pass of a recorded program: what it finds, what it leaves, and who goes first."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import TRAIN, Ended, bare, manifest, write_script
from programs import recorded as recorded_with

from gpuledger.analyze.times import break_down_time
from gpuledger.api import load

pytestmark = pytest.mark.torch

TIMED = ("-q", "--passes", "memory,time")
STEPS = TRAIN + "for _ in range({count}): step()\n"
PROFILED = """
from torch.profiler import ProfilerActivity, profile, schedule
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait={wait}, warmup=1, active=2)) as theirs:
    for _ in range(20):
        step()
        theirs.step()
print(sum(event.count for event in theirs.key_averages()) > 0)
"""


def recorded(words: list[str], directory: Path, options: tuple[str, ...] = TIMED) -> Ended:
    """Return how the program ends below ``gpuledger run`` with a time pass."""
    return recorded_with(words, directory, options)


def assert_unchanged(directory: Path) -> None:
    """Record ``train.py`` and hold it to what it does bare, but for the times that Kineto writes to stderr."""
    alone, below = bare(["train.py"], directory), recorded(["train.py"], directory)
    assert (below.status, below.stdout) == (alone.status, alone.stdout)
    said = [line for line in below.stderr.splitlines() if not line.startswith(b"USDT:")]
    assert said == [line for line in alone.stderr.splitlines() if not line.startswith(b"USDT:")]


def test_operators_find_their_modules_and_sum_to_the_work(tmp_path: Path) -> None:
    write_script(tmp_path, STEPS.format(count=20))
    assert_unchanged(tmp_path)
    rank = load(tmp_path / "train.ledger").rank(0)
    assert rank.manifest["notes"] == []
    assert rank.manifest["time_steps"] == [14, 15]
    found = break_down_time(rank)
    assert found is not None
    assert found.on_host
    assert found.steps == 2
    assert sum(account.time_ns for account in found.accounts) == pytest.approx(found.work_ns)
    assert 0 < found.busy_ns <= found.work_ns
    placed = {(account.module, account.phase) for account in found.accounts}
    assert {("0", "forward"), ("0", "backward"), ("2", "forward"), ("2", "backward"), ("", "optimizer")} <= placed


def test_the_step_time_is_that_of_undisturbed_steps(tmp_path: Path) -> None:
    write_script(tmp_path, STEPS.format(count=30))
    recorded(["train.py"], tmp_path)
    found = break_down_time(load(tmp_path / "train.ledger").rank(0))
    assert found is not None
    assert found.undisturbed.count == 10


@pytest.mark.parametrize("count", [2, 8, 14])
def test_a_short_script_gets_what_fits(count: int, tmp_path: Path) -> None:
    write_script(tmp_path, STEPS.format(count=count))
    assert_unchanged(tmp_path)
    rank = load(tmp_path / "train.ledger").rank(0)
    found = break_down_time(rank)
    assert (found is not None) == (count == 14)
    assert any("ended early" in note for note in rank.manifest["notes"]) == (count == 14)


@pytest.mark.parametrize("wait", [1, 12])
def test_the_programs_own_profiler_goes_first(wait: int, tmp_path: Path) -> None:
    """Whether it works, or waits, while ours would be at work."""
    write_script(tmp_path, TRAIN + PROFILED.format(wait=wait))
    assert_unchanged(tmp_path)
    rank = load(tmp_path / "train.ledger").rank(0)
    assert [note for note in rank.manifest["notes"] if note.startswith("No time pass")]
    assert break_down_time(rank) is None


def test_a_profiler_made_inside_ours_goes_first(tmp_path: Path) -> None:
    late = TRAIN + "for _ in range(14): step()\n" + PROFILED.format(wait=1)
    write_script(tmp_path, late)
    assert_unchanged(tmp_path)
    rank = load(tmp_path / "train.ledger").rank(0)
    assert [note for note in rank.manifest["notes"] if note.startswith("No time pass")]
    assert break_down_time(rank) is None


def test_passes_can_be_chosen(tmp_path: Path) -> None:
    write_script(tmp_path, STEPS.format(count=20))
    recorded(["train.py"], tmp_path, options=("-q", "--passes", "memory"))
    rank = load(tmp_path / "train.ledger").rank(0)
    assert rank.manifest["passes"] == ["memory"]
    assert break_down_time(rank) is None
    assert manifest(tmp_path / "train.ledger")["settings"]["passes"]["origin"] == "flag"
