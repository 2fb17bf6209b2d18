"""bench/memory/many_blocks.py with an allocator made of numbers: what an error costs is measured on any machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from failing_allocator import counters, snapshot
from folders import ROOT
from pages import flight

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.launch.settings import RecordSettings, check_steps
from gpuledger.collect.memory import out_of_memory
from gpuledger.collect.session.session import Session

sys.path.insert(0, str(ROOT / "bench" / "lib"))
sys.path.insert(0, str(ROOT / "bench" / "memory"))

from many_blocks import BLOCK_BYTES, concluded, described, fail_with

COUNT = 300
MESSAGE = "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 4.00 GiB"
Observer = Callable[[int, int, int, int], None]


class Numbers:
    """A GPU that counts blocks and tells its observers before it fails."""

    device = "cpu"

    def __init__(self, *, allocates: bool = False) -> None:
        self.observers: list[Observer] = []
        self.live = 0
        self.allocates = allocates

    def block(self, size_bytes: int) -> object:
        assert size_bytes == BLOCK_BYTES
        self.live += 1
        return object()

    def fail(self) -> None:
        for observe in self.observers:
            observe(0, 8 << 30, 4 << 30, 0)
            self.live += self.allocates
        raise torch.OutOfMemoryError(MESSAGE)

    def figures(self) -> dict[str, int]:
        return {"allocated_bytes": self.live * BLOCK_BYTES, "allocations": self.live}


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Numbers:
    card = Numbers()
    monkeypatch.setattr(torch_private, "memory_stats", lambda _device: counters(card.live * BLOCK_BYTES))
    monkeypatch.setattr(torch_private, "light_snapshot", lambda: snapshot([BLOCK_BYTES] * card.live, []))
    monkeypatch.setattr(torch_private, "memory_fraction", lambda _device: 1.0)
    monkeypatch.setattr(torch_private, "watch_out_of_memory", card.observers.append)
    return card


def failed(card: Numbers, directory: Path) -> dict[str, Any]:
    rank = directory / "many.ledger" / "rank-0"
    rank.mkdir(parents=True)

    def start() -> Session:
        settings = RecordSettings(rank.parent, stacks=True, devices="cpu", flight_recorder=True)
        session = Session(settings, rank_directory=lambda: rank, from_outside=True, begins_late=False)
        session.start()
        session.guard(lambda: out_of_memory.watch(session.guard.for_good, session.ran_out_of_memory))()
        return session

    return fail_with(card, COUNT, rank, start)


def test_all_blocks_are_written_before_the_program_has_its_exception(card: Numbers, tmp_path: Path) -> None:
    found = failed(card, tmp_path)
    assert found["blocks"] == COUNT
    assert found["more"] == {"allocated_bytes": 0, "allocations": 0}
    assert 0 < found["took_s"] <= found["wall_s"]
    assert found["written_bytes"] > 1000
    assert found["exception"]["is_the_programs"]
    assert found["exception"]["message"] == MESSAGE


def test_allocations_while_the_error_is_written_are_seen(card: Numbers, tmp_path: Path) -> None:
    card.allocates = True
    assert failed(card, tmp_path)["more"] == {"allocated_bytes": BLOCK_BYTES, "allocations": 1}


def test_it_is_compared_with_the_program_without_a_recording(card: Numbers, tmp_path: Path) -> None:
    with_it, bare = failed(card, tmp_path / "with"), fail_with(card, COUNT, tmp_path, None)
    found = concluded([with_it], [bare, {"error": "the process died or took too long"}])
    assert found["with"]["wall_s"]["values"] == [with_it["wall_s"]]
    assert found["without"]["wall_s"]["median"] == bare["wall_s"]
    assert found["is_the_programs"]
    assert found["same_message"]
    other = {**bare, "exception": {**bare["exception"], "message": "another"}}
    assert not concluded([with_it], [other])["same_message"]


def test_the_page_says_whether_anything_was_allocated(card: Numbers, tmp_path: Path) -> None:
    machine = {"card": "GPU", "driver": "1", "versions": {"torch": "2.11.0"}, "date": "2026-11-28", "commit": None}
    bare = fail_with(card, COUNT, tmp_path, None)
    for allocates, says in ((False, "allocated nothing on the GPU"), (True, "had 1 more requests")):
        card.allocates = allocates
        card.observers.clear()
        counts = {"300": concluded([failed(card, tmp_path / says)], [bare])}
        lines = flight.error_lines({"environment": machine, "goal_s": 2.0, "counts": counts})
        assert says in " ".join(lines)
        assert "its own message" in " ".join(lines)
        assert lines[-1].startswith("| 300 | 0.")


def test_an_exception_that_passed_through_gpuledger_or_has_a_cause_is_not_the_programs() -> None:
    class Failing:
        def __repr__(self) -> str:
            raise torch.OutOfMemoryError(MESSAGE)

    with pytest.raises(torch.OutOfMemoryError) as passed:
        check_steps(Failing())
    assert not described(passed.value)["is_the_programs"]
    with pytest.raises(torch.OutOfMemoryError) as direct:
        repr(Failing())
    assert described(direct.value)["is_the_programs"]
    direct.value.__cause__ = ValueError()
    assert not described(direct.value)["is_the_programs"]
