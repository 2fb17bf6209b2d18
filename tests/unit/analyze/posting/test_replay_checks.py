"""Checks of a replay against PyTorch's counters: bytes in use after each event, and allocations that were lost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuledger.analyze.posting.checks import check_device, running_bytes
from gpuledger.analyze.posting.device import device_histories
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.model.journal.columns import COLUMNS
from gpuledger.model.journal.journal import REASONS, Action, BlockState, JournalWriter, Part
from gpuledger.model.journal.reading import journal_of, read_journal

ALLOC, REQUESTED, COMPLETED = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
EVENTS = 5
LIVES = [(-1, -1), *((born, freed) for born in range(-1, EVENTS) for freed in (*range(born + 1, EVENTS), NEVER))]
"""Every possible life of a block: the events that allocate and free it; -1 is before the first event."""


def test_a_block_is_in_use_after_its_allocation_until_the_event_that_frees_it() -> None:
    """For one block of each life, each with a size that is in no sum of the others."""
    born, freed = np.array(LIVES, dtype=np.int64).T
    history: Any = SimpleNamespace(events=SimpleNamespace(count=EVENTS), lives=SimpleNamespace(alloc_index=born))
    expected = [
        sum(1 << number for number, (begin, end) in enumerate(LIVES) if begin < events <= end)
        for events in range(EVENTS + 1)
    ]
    assert running_bytes(history, freed, 1 << np.arange(born.size)).tolist() == expected


@pytest.mark.parametrize("lost", [0, 1])
def test_allocations_are_counted_from_the_counters_at_the_start(lost: int, tmp_path: Path) -> None:
    """PyTorch had counted 100 allocations and 40 frees before; of three allocations the last may be lost."""
    part = Part(facts={"recorder": "dispatch"})
    sizes = {"device_idx": -1, "stream": 0, "tag_id": -1, "stack_id": -1, "operator_id": -1}
    for number in range(3 - lost):
        part.add("events", **sizes, action=Action.ALLOC, address=64 * (1 + number), bytes=10, time_ns=number)
    nothing = dict.fromkeys(COLUMNS["counters"], 0) | {"device_idx": -1, "free_count": 40}
    part.add("counters", **nothing | {"reason": REASONS.index("open"), "alloc_count": 100})
    held = dict.fromkeys(("allocated_bytes", "requested_bytes", "active_bytes"), 30)
    part.add("counters", **nothing | held | {"reason": REASONS.index("close"), "alloc_count": 103, "t_ns": 9})
    JournalWriter(tmp_path).write(part)
    journal = read_journal(tmp_path)
    (history,) = device_histories(journal)
    checks = {check["name"]: check for check in check_device(history, journal)}
    recorded = checks["allocations recorded"]
    assert (recorded["expected"], recorded["found"], recorded["ok"]) == (3, 3 - lost, not lost)
    at_close = {name: check["ok"] for name, check in checks.items() if "bytes at close" in name}
    assert at_close == {f"{kind} bytes at close, step 0": not lost for kind in ("allocated", "requested", "active")}


HISTORY = (
    (ALLOC, 1, 100),
    (ALLOC, 2, 200),
    (REQUESTED, 1, 100),  # 200 bytes allocated, and 300 in use until the next event
    (COMPLETED, 1, 100),
    (ALLOC, 3, 50),
    (REQUESTED, 2, 200),
    (COMPLETED, 2, 200),
    (ALLOC, 4, 7),
)
COUNTERS = (
    # reason, step, allocations, frees: bytes allocated, requested
    ("open", 0, 0, 0, 0, 0),
    ("step_end", 1, 2, 1, 200, 300),
    ("step_end", 2, 3, 1, 250, 250),
    ("step_end", 3, 3, 2, 50, 250),
    ("close", 4, 4, 2, 57, 57),
)
CLOSING = ((3, 50, 50, BlockState.ALLOCATED), (4, 7, 7, BlockState.ALLOCATED), (5, 9, 9, BlockState.INACTIVE))
GPU, OTHER_GPU = 0, 1


def recording(
    *,
    counters: tuple[tuple[str, int, int, int, int, int], ...] = COUNTERS,
    peak_bytes: int = 300,
    closing: tuple[tuple[int, int, int, BlockState], ...] = CLOSING,
    more_events: tuple[tuple[Action, int, int], ...] = (),
    is_closed: bool = False,
    read_ns: int = 100,
) -> Part:
    """Return a recording of two GPUs: what is recorded of the other one, and at the program's exit, is not checked."""
    part = Part(facts={"recorder": "dispatch"} | ({"closed": True} if is_closed else {}))
    nobody = {"stream": 0, "tag_id": -1, "stack_id": -1, "operator_id": -1}
    for time_ns, (action, address, size_bytes) in enumerate((*HISTORY, *more_events)):
        event = {"action": action, "address": address, "bytes": size_bytes, "time_ns": time_ns}
        part.add("events", device_idx=GPU, **event, **nobody)
    nothing = dict.fromkeys(COLUMNS["counters"], 0)
    for device_idx, rows in ((OTHER_GPU, counters[:2]), (GPU, counters), (GPU, (("exit", 5, 9, 9, 9, 9),))):
        for reason, step, allocations, frees, allocated_bytes, requested_bytes in rows:
            row = {
                "device_idx": device_idx,
                "reason": REASONS.index(reason),
                "step": step,
                "alloc_count": allocations,
                "free_count": frees,
                "allocated_bytes": allocated_bytes + device_idx,
                "requested_bytes": requested_bytes + device_idx,
                "active_bytes": 57 if reason == "close" else 1,
                "peak_allocated_bytes": peak_bytes if reason == "close" else 9_999,
                "t_ns": read_ns,
            }
            part.add("counters", **nothing | row)
    snapshots = (("close", GPU), ("close", GPU), ("close", GPU), ("oom", GPU), ("close", OTHER_GPU))
    for snapshot_id, (reason, device_idx) in enumerate(snapshots):
        part.add(
            "snapshots",
            snapshot_id=snapshot_id,
            reason=REASONS.index(reason),
            device_idx=device_idx,
            event_count=8,
            t_ns=0,
        )
        blocks = closing if snapshot_id == 2 else ((3, 1, 1, BlockState.ALLOCATED),)
        for block_device, address, size, requested, state in (
            *((GPU, *block) for block in blocks),
            (OTHER_GPU, 4, 1, 1, BlockState.ALLOCATED),
        ):
            block = {"address": address, "bytes": size, "requested_bytes": requested, "state": state}
            part.add(
                "snapshot_blocks",
                snapshot_id=snapshot_id,
                device_idx=block_device,
                segment_address=0,
                stack_id=-1,
                **block,
            )
    return part


def checks_of(part: Part) -> dict[str, tuple[int, int]]:
    """Return what is expected and what was found for each check of the first GPU."""
    journal = journal_of([part])
    history = next(one for one in device_histories(journal) if one.device_idx == GPU)
    checks = check_device(history, journal)
    assert [(check["device_idx"], check["ok"]) for check in checks] == [
        (GPU, check["expected"] == check["found"]) for check in checks
    ]
    return {check["name"]: (check["expected"], check["found"]) for check in checks}


def test_every_check_of_one_gpu_holds_for_what_really_happened() -> None:
    at = [f"{reason}, step {step}" for reason, step, *_ in COUNTERS]
    assert checks_of(recording()) == {
        **{f"allocated bytes at {where}": (row[4], row[4]) for where, row in zip(at, COUNTERS, strict=True)},
        **{f"requested bytes at {where}": (row[5], row[5]) for where, row in zip(at, COUNTERS, strict=True)},
        "active bytes at close, step 4": (57, 57),
        "allocations recorded": (4, 4),
        "peak allocated bytes": (300, 300),
        "live blocks of the closing snapshot found with the same sizes": (2, 2),
        "live blocks at the close": (2, 2),
        "events that fit the replayed state": (8, 8),
    }


@pytest.mark.parametrize(
    ("row", "asked", "found"),
    [
        (0, 100, 0),  # before the first allocation there is nothing
        (1, 200, 200),  # the free that was requested may be complete …
        (1, 250, 300),  # … but what is allocated after it does not count yet
        (1, 100, 300),
        (2, 50, 250),  # until the next free that is requested, not until the next allocation
        (3, 50, 50),
        (3, 57, 250),  # until the next allocation, where no free follows
        (4, 50, 57),
    ],
)
def test_requested_bytes_may_be_those_of_any_state_before_the_next_request(row: int, asked: int, found: int) -> None:
    rows = [list(one) for one in COUNTERS]
    rows[row][5] = asked
    checks = checks_of(recording(counters=tuple(map(tuple, rows))))  # type: ignore[arg-type]
    assert checks[f"requested bytes at {rows[row][0]}, step {rows[row][1]}"] == (asked, found)


@pytest.mark.parametrize(("is_closed", "found"), [(False, 4), (True, 5)])
def test_what_is_allocated_after_the_counters_of_the_close_was_lost_by_them(is_closed: bool, found: int) -> None:
    """If the recording was closed. In a recording without an end, the last counters are of any moment."""
    assert checks_of(recording(more_events=((ALLOC, 5, 1),), is_closed=is_closed))["allocations recorded"] == (4, found)
    rows = (*COUNTERS[:-1], ("close", 4, 5, 2, 57, 57))
    assert checks_of(recording(counters=rows, is_closed=is_closed))["allocations recorded"] == (5, 4)


@pytest.mark.parametrize(("read_ns", "is_late"), [(7, True), (8, False)])
@pytest.mark.parametrize("seen", [0, 1])
def test_other_threads_go_on_while_the_counters_of_the_close_are_read(read_ns: int, is_late: bool, seen: int) -> None:
    """They allocate and free between the time of the counters, the counters, and the closing snapshot."""
    rows = (*COUNTERS[:-1], ("close", 4, 4 + seen, 2, 57 + 9 * seen, 57 + 9 * seen))
    more = ((ALLOC, 5, 9), (REQUESTED, 3, 50), (COMPLETED, 3, 50))
    checks = checks_of(recording(counters=rows, more_events=more, is_closed=True, read_ns=read_ns))
    assert checks["allocations recorded"] == (4 + seen, 4 + seen if is_late or seen else 5)
    if not seen:
        assert checks["active bytes at close, step 4"] == (57, 57 if is_late else 16)


@pytest.mark.parametrize(
    ("peak_bytes", "counters", "checked"),
    [
        (300, COUNTERS, (300, 300)),
        (301, COUNTERS, (301, 300)),
        (299, COUNTERS, None),  # the program has reset it
        (300, COUNTERS[1:], None),
        (300, COUNTERS[:-1], None),
        (300, (("open", 0, 1, 0, 0, 0), *COUNTERS[1:]), None),  # the peak may be from before the recording
    ],
)
def test_the_peak_is_checked_if_the_counter_is_of_the_recorded_steps_alone(
    peak_bytes: int, counters: tuple[tuple[str, int, int, int, int, int], ...], checked: tuple[int, int] | None
) -> None:
    assert checks_of(recording(peak_bytes=peak_bytes, counters=counters)).get("peak allocated bytes") == checked


@pytest.mark.parametrize(
    ("closing", "same", "live"),
    [
        (CLOSING[:1], (1, 1), (1, 2)),
        ((*CLOSING[:2], (8, 7, 7, BlockState.ALLOCATED)), (3, 2), (3, 2)),
        ((CLOSING[0], (4, 7, 8, BlockState.ALLOCATED)), (2, 1), (2, 2)),
        ((CLOSING[0], (4, 8, 7, BlockState.ALLOCATED)), (2, 1), (2, 2)),
        ((CLOSING[0], (4, 7, 7, BlockState.INACTIVE)), (1, 1), (1, 2)),
    ],
)
def test_the_last_closing_snapshot_has_the_live_blocks_with_their_sizes(
    closing: tuple[tuple[int, int, int, BlockState], ...], same: tuple[int, int], live: tuple[int, int]
) -> None:
    checks = checks_of(recording(closing=closing))
    assert checks["live blocks of the closing snapshot found with the same sizes"] == same
    assert checks["live blocks at the close"] == live


def test_without_counters_and_snapshots_only_the_events_are_checked() -> None:
    part = recording(more_events=((REQUESTED, 99, 1),))
    for table in ("counters", "snapshots", "snapshot_blocks"):
        del part.rows[table]
    assert checks_of(part) == {"events that fit the replayed state": (9, 8)}
