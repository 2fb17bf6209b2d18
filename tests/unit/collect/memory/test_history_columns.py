"""The allocator's history, as torch returns it, becomes columns of the journal."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.flight.failures import add_snapshot
from gpuledger.collect.flight.last_events import RING_ENTRIES
from gpuledger.collect.memory.history_columns import HistoryStacks, event_columns
from gpuledger.model.accounts import Phase
from gpuledger.model.bounds import LARGEST_REQUEST_BYTES, check_bounds
from gpuledger.model.journal.journal import Action, Part

Frames = list[dict[str, Any]]


def frames_of(text: str) -> Frames:
    """Return one frame per letter of ``text``."""
    return [{"name": letter, "filename": f"{letter}.py", "line": ord(letter)} for letter in text]


def entry_of(action: str = "alloc", **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": 512, "size": 4, "stream": 0, "time_us": 7, **more}


def numbers_of(stacks: HistoryStacks, lists: list[Frames]) -> list[int]:
    return stacks.numbers([entry_of(frames=frames) for frames in lists])


class CountingTable(StackTable):
    """Counts the stacks that it was asked for."""

    asked = 0

    def intern(self, frames: tuple[tuple[str, int, str], ...]) -> int:
        self.asked += 1
        return super().intern(frames)


def test_events_become_columns() -> None:
    tags = TagTable()
    visit = tags.begin_visit(3, Phase.FORWARD)
    trace = [
        entry_of(user_metadata=f"{visit}.5"),
        entry_of("free_completed", user_metadata="of the program", stream=(1 << 64) - 2),
        {"action": "oom", "device_free": 1, "size": 9, "stream": 1, "time_us": 8},
        entry_of("of a newer torch", user_metadata=f"{visit}.5"),
    ]
    columns = event_columns(trace, tags, None)
    assert columns["action"] == [Action.ALLOC, Action.FREE_COMPLETED, Action.OOM, Action.OTHER]
    assert columns["address"] == [512, 512, 0, 512]
    assert columns["stream"] == [0, -2, 1, 0]
    assert columns["time_ns"].tolist() == [7000, 7000, 8000, 7000]
    assert columns["tag_id"] == [0, -1, -1, 0]
    part = Part()
    part.add("events", device_idx=0, **columns)
    tags.drain(part)
    assert part.arrays()["events.bytes"].tolist() == [4, 4, 9, 4]
    assert part.arrays()["tags.module_id"].tolist() == [4]


def test_requests_of_any_size_leave_a_part_valid() -> None:
    """A program that halves its batch until it fits can begin with petabytes, and can try again for a long time."""
    failed = {"action": "oom", "device_free": 1, "size": (1 << 63) - 1, "stream": 0, "time_us": 8}
    part = Part()
    part.add("events", device_idx=0, **event_columns([entry_of(), *[failed] * RING_ENTRIES], TagTable(), None))
    add_snapshot(part, 0, 0, {"segments": [], "device_traces": [[failed] * RING_ENTRIES]})
    for column in ("events.bytes", "failure_events.bytes"):
        check_bounds(part.arrays()[column], column)
    assert part.arrays()["events.bytes"].tolist()[:2] == [4, LARGEST_REQUEST_BYTES]


def test_only_allocations_have_stacks() -> None:
    frames = frames_of("ab")
    trace = [entry_of(), entry_of(frames=[]), entry_of(frames=frames), entry_of("free_requested", frames=frames)]
    assert event_columns(trace, TagTable(), HistoryStacks(StackTable()))["stack_id"] == [-1, -1, 0, -1]


def test_frames_of_compiled_code_are_left_out() -> None:
    """A history of the program's own has them by default."""
    table = StackTable()
    compiled = ("", "??", "/pytorch/c10/core/Allocator.cpp", "Python/ceval.c", "/lib/libc.so.6", "a.cuh", "b.h")
    frames = [{"filename": file, "line": 1, "name": "f"} for file in (*compiled, "train", "a.cpp.py", "<stdin>")]
    (number,) = HistoryStacks(table).numbers([entry_of(frames=frames)])
    assert table.intern((("train", 1, "f"), ("a.cpp.py", 1, "f"), ("<stdin>", 1, "f"))) == number


def test_a_stack_is_read_once_in_all_snapshots() -> None:
    table = CountingTable()
    stacks = HistoryStacks(table)
    for _ in range(3):
        frames = frames_of("abcdefgh")
        assert numbers_of(stacks, [frames, list(frames), frames[1:], list(frames)]) == [0, 0, 1, 0]
    assert table.asked == 2
    part = Part()
    table.drain(part)
    assert part.stacks[1] == [(f"{letter}.py", ord(letter), letter) for letter in "bcdefgh"]


@pytest.mark.parametrize("place", range(12))
def test_one_other_frame_makes_another_stack(place: int) -> None:
    frames = frames_of("abcdefghijkl")
    other = [*frames[:place], *frames_of("z"), *frames[place + 1 :]]
    stacks = HistoryStacks(StackTable())
    assert numbers_of(stacks, [frames, other, frames, list(other)]) == [0, 1, 0, 1]


def test_equal_frames_of_several_snapshots_are_one() -> None:
    stacks = HistoryStacks(StackTable())
    assert numbers_of(stacks, [frames_of("ab"), frames_of("ba")]) == [0, 1]
    assert numbers_of(stacks, [frames_of("ba"), frames_of("ab")]) == [1, 0]
