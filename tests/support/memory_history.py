"""The allocator's memory history as a stand-in: who has started it, and with which stacks."""

from __future__ import annotations

from typing import Any

import pytest
from failing_allocator import MIB, counters

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.flight import last_events


class History:
    """Stands in for the allocator's history."""

    def __init__(self) -> None:
        self.owner = ""
        self.starts = 0
        self.kept_with: list[str | None] = []

    def start_ring(self, max_entries: int, kept_with: str | None = None) -> None:
        assert max_entries == last_events.RING_ENTRIES
        assert self.owner != "program"
        self.owner = "ring"
        self.starts += 1
        self.kept_with.append(kept_with)

    def take_stacks(self, kept_with: str | None, max_entries: int) -> None:
        assert (self.owner, max_entries) == ("ring", last_events.RING_ENTRIES)
        self.kept_with.append(kept_with)

    def stop(self) -> None:
        assert self.owner != "program"
        self.owner = ""

    @property
    def is_plain(self) -> bool:
        """Whether the ring is on without stacks."""
        return self.owner == "ring" and self.kept_with[-1] is None


class Watch:
    """Stands in for the detector of the program's own history."""

    def __init__(self, give_way: Any, _absorbs: Any) -> None:
        self.give_way = give_way
        Watch.latest = self

    latest: Watch

    def remove(self) -> None:
        pass


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> History:
    found = History()
    monkeypatch.setattr(torch_private, "start_ring", found.start_ring)
    monkeypatch.setattr(torch_private, "stop_history", found.stop)
    monkeypatch.setattr(torch_private, "take_ring_stacks", found.take_stacks)
    monkeypatch.setattr(torch_private, "stop_ring", found.stop)
    monkeypatch.setattr(torch_private, "ring_from_ns", lambda: int(found.owner == "ring"))
    monkeypatch.setattr(torch_private, "is_history_off", lambda: not found.owner)
    monkeypatch.setattr(torch_private, "ring_is_on", lambda: found.owner == "ring")
    monkeypatch.setattr(torch_private, "memory_stats", lambda _device: counters(80 * MIB))
    monkeypatch.setattr(torch_private, "pinned_bytes", lambda: None)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr(last_events, "UserHistory", Watch)
    return found
