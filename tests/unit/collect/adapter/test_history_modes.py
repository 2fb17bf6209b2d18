"""What torch is asked for when the allocator's history starts."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from gpuledger.collect.adapter import torch_private

pytestmark = pytest.mark.torch


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(torch_private, "_record_memory_history", lambda **how: found.append(how))
    monkeypatch.setattr(torch_private, "_change_ring", lambda **how: found.append(how))
    monkeypatch.setattr(torch_private, "_history_is_on", lambda: bool(found) and found[-1]["enabled"] is not None)
    yield found
    torch_private.stop_history()


def test_the_flight_recorder_leaves_out_what_no_replay_reads(asked: list[dict[str, Any]]) -> None:
    torch_private.start_ring(100)
    assert asked[0]["skip_actions"] == ["free_completed"]
    assert (asked[0]["context"], asked[0]["max_entries"], asked[0]["clear_history"]) == (None, 100, True)


def test_a_recording_has_every_event_after_the_flight_recorder_too(asked: list[dict[str, Any]]) -> None:
    torch_private.start_ring(100)
    torch_private.start_history(stacks=True, max_entries=1000, clear=True)
    assert "skip_actions" not in asked[1]
    assert asked[1]["context"] == "alloc"


@pytest.mark.parametrize("kept_with", ["state", "alloc", None])
def test_stacks_of_the_ring_are_switched_without_losing_its_events(
    asked: list[dict[str, Any]], kept_with: str | None
) -> None:
    torch_private.start_ring(100)
    torch_private.take_ring_stacks(kept_with, 100)
    assert asked[1:] == [{**asked[0], "context": kept_with, "clear_history": False}]
    assert torch_private.ring_is_on()


def test_the_ring_tells_since_when_it_is_on(asked: list[dict[str, Any]]) -> None:
    assert torch_private.ring_from_ns() == 0
    before_ns = time.time_ns()
    torch_private.start_ring(100, "state")
    assert before_ns <= torch_private.ring_from_ns() <= time.time_ns()
    torch_private.start_history(stacks=False, max_entries=1000, clear=True)
    assert torch_private.ring_from_ns() == 0
    torch_private.start_ring(100)
    torch_private.stop_ring()
    assert torch_private.ring_from_ns() == 0
    assert asked[-1] == {"enabled": None}


def test_the_switch_is_torchs_own() -> None:
    wanted = {"enabled", "context", "stacks", "max_entries", "clear_history"}
    assert wanted <= set(inspect.signature(torch_private._change_ring).parameters)
