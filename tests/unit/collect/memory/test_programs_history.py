"""A memory history that the program keeps itself is read in pieces, and stays as it is."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.memory.cuda_history import NO_EVENTS, CudaRecorder
from gpuledger.model.journal.journal import Part

pytestmark = pytest.mark.torch


class History:
    """Stands for the allocator's history of one GPU: sizes of allocations, and who starts and stops it."""

    def __init__(self) -> None:
        self.trace: list[dict[str, Any]] = []
        self.changes: list[str] = []
        self.most = 1_000
        self.allocations = 0

    def allocate(self, size: int, time_us: int) -> None:
        self.allocations += 1
        self.trace.append({"action": "alloc", "addr": 512, "size": size, "stream": 0, "time_us": time_us})
        del self.trace[: len(self.trace) - self.most]

    def snapshot(self) -> dict[str, Any]:
        return {"device_traces": [list(self.trace)], "segments": []}

    def start(self, **how: Any) -> None:
        self.changes.append("start")
        if how["clear"]:
            self.trace.clear()

    def stop(self) -> None:
        self.changes.append("stop")
        self.trace.clear()


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> History:
    found = History()
    monkeypatch.setattr(torch_private, "set_memory_metadata", lambda: lambda _token: None)
    monkeypatch.setattr(torch_private, "full_snapshot", found.snapshot)
    monkeypatch.setattr(torch_private, "light_snapshot", lambda: {"device_traces": [], "segments": []})
    monkeypatch.setattr(torch_private, "start_history", found.start)
    monkeypatch.setattr(torch_private, "stop_history", found.stop)
    counters = lambda _device_idx: {"allocation": {"all": {"allocated": found.allocations, "freed": 0}}}  # noqa: E731
    monkeypatch.setattr(torch_private, "memory_stats", counters)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    return found


def sizes_of(part: Part) -> list[int]:
    arrays = part.arrays()
    return [int(size) for size in arrays["events.bytes"]] if "events.bytes" in arrays else []


def drained(recorder: CudaRecorder) -> list[int]:
    part = Part()
    recorder.drain(part, "step_end")
    return sizes_of(part)


def opened(*, reads_programs: bool) -> CudaRecorder:
    recorder = CudaRecorder(StackTable(), TagTable(), reads_programs=reads_programs)
    recorder.open(Part(), LiveObjects())
    return recorder


def test_each_event_is_read_once_and_none_from_before(history: History) -> None:
    history.allocate(1, time_us=5)
    recorder = opened(reads_programs=True)
    history.allocate(2, time_us=5)
    history.allocate(3, time_us=5)
    assert drained(recorder) == [2, 3]
    history.allocate(4, time_us=5)
    history.allocate(5, time_us=6)
    assert drained(recorder) == [4, 5]
    assert drained(recorder) == []
    history.allocate(6, time_us=7)
    recorder.set_stacks(True)
    last = Part()
    recorder.close(last, "close")
    assert sizes_of(last) == [6]
    assert history.changes == []
    assert [entry["size"] for entry in history.trace] == [1, 2, 3, 4, 5, 6]


def test_what_a_short_history_still_has_is_read(history: History) -> None:
    history.most = 2
    recorder = opened(reads_programs=True)
    for size in range(5):
        history.allocate(size, time_us=size)
    assert drained(recorder) == [3, 4]
    history.allocate(5, time_us=5)
    assert drained(recorder) == [5]


def test_a_history_that_the_program_starts_later_takes_the_place_of_ours(history: History) -> None:
    recorder = opened(reads_programs=False)
    history.allocate(1, time_us=1)
    part = Part()
    recorder.read_programs(part)
    assert sizes_of(part) == [1]
    assert history.changes == ["start", "stop"]
    history.allocate(2, time_us=2)
    assert drained(recorder) == [2]
    history.allocate(3, time_us=3)
    again = Part()
    recorder.read_programs(again)  # before the program clears it
    history.trace.clear()
    history.allocate(4, time_us=4)
    assert (sizes_of(again), drained(recorder)) == ([3], [4])
    recorder.close(Part(), "close")
    assert history.changes == ["start", "stop"]


@pytest.mark.parametrize("later", [False, True])
def test_a_history_without_events_is_said_to_have_none(history: History, later: bool) -> None:
    recorder, part = opened(reads_programs=not later), Part()
    if later:
        recorder.read_programs(Part())
    history.most = 0
    history.allocate(1, time_us=1)
    recorder.close(part, "close")
    assert part.notes == [NO_EVENTS]


@pytest.mark.parametrize("allocates", [False, True])
def test_a_history_with_events_or_without_allocations_needs_no_note(history: History, allocates: bool) -> None:
    history.allocate(1, time_us=1)
    recorder, part = opened(reads_programs=True), Part()
    if allocates:
        history.allocate(2, time_us=2)
    recorder.close(part, "close")
    assert part.notes == []
