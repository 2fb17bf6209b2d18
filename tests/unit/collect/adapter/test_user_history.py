"""What snapshots of the program's own show of the recording's events and stacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from gpuledger.collect.adapter import torch_private, user_history
from gpuledger.collect.adapter.observer import absorbs_nothing
from gpuledger.collect.adapter.user_history import UserHistory

pytestmark = pytest.mark.torch


def record_own_history(**_how: Any) -> None:
    """Stand in for ``torch.cuda.memory._record_memory_history``."""
    return


def snapshot() -> dict[str, Any]:
    """Stand in for ``torch.cuda.memory._snapshot``: one event, and one block with a stack."""
    return {"device_traces": [[{"action": "alloc"}]], "segments": segments()}


def segments() -> list[dict[str, Any]]:
    """Stand in for ``torch.cuda.memory.memory_snapshot``."""
    return [{"frames": ["line"], "blocks": [{"frames": ["line"]}, {}]}]


def hidden() -> tuple[bool, bool, bool]:
    """Return whether events, stacks of a snapshot, and stacks of a list of segments are left out."""
    taken, listed = snapshot(), segments()
    return (
        taken["device_traces"] == [[]],
        taken["segments"] == [{"frames": [], "blocks": [{"frames": []}, {}]}],
        listed == [{"frames": [], "blocks": [{"frames": []}, {}]}],
    )


@pytest.fixture
def given_way(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setattr(user_history, "record_memory_history", lambda: record_own_history)
    monkeypatch.setattr(user_history, "take_snapshot", lambda: snapshot)
    monkeypatch.setattr(user_history, "list_segments", lambda: segments)
    found: list[str] = []
    detector = UserHistory(lambda: found.append("gave way"), absorbs_nothing)
    yield found
    detector.remove()
    assert hidden() == (False, False, False)


def test_a_snapshot_before_the_programs_own_history_shows_nothing_of_the_recording(given_way: list[str]) -> None:
    assert hidden() == (True, True, True)
    assert given_way == []


def test_the_programs_own_history_is_shown_whole(given_way: list[str]) -> None:
    record_own_history(enabled="all")
    assert given_way == ["gave way"]
    assert hidden() == (False, False, False)


def test_the_recordings_own_history_stays_hidden(given_way: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "history_is_ours", lambda: True)
    record_own_history(enabled="all")
    assert given_way == []
    assert hidden() == (True, True, True)


HISTORY: list[dict[str, Any]] = []


def allocators_snapshot(*_: Any) -> dict[str, Any]:
    """Stand in for the allocator's: it adds an event to the history, which the next snapshot has."""
    taken = {"device_traces": [list(HISTORY), []], "segments": []}
    HISTORY.append({"action": "snapshot"})
    return taken


def programs_snapshot() -> dict[str, Any]:
    """Stand in for ``torch.cuda.memory._snapshot``, which asks the allocator."""
    return allocators_snapshot()


def test_the_programs_own_history_has_no_events_of_our_snapshots(
    given_way: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = HISTORY
    monkeypatch.setattr(torch_private, "_history_is_on", lambda: True)
    monkeypatch.setattr(torch_private._C, "_cuda_memorySnapshot", allocators_snapshot, raising=False)
    monkeypatch.setattr(user_history, "take_snapshot", lambda: programs_snapshot)
    detector = UserHistory(lambda: None, absorbs_nothing, starts=lambda: True)
    try:
        torch_private.full_snapshot()
        record_own_history(enabled="all")
        history.clear()
        expected: list[dict[str, Any]] = []
        for number, by in enumerate(["ours", "program", "ours", "ours", "program", "program", "ours", "program"]):
            event = {"action": "alloc", "size": number}
            history.append(event)
            expected.append(event)
            if by == "ours":
                torch_private.light_snapshot()
            else:
                assert programs_snapshot()["device_traces"] == [expected, []]
                expected.append({"action": "snapshot"})
    finally:
        detector.remove()
    assert given_way
