"""What torch is asked for when the allocator's history starts."""

from __future__ import annotations

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
