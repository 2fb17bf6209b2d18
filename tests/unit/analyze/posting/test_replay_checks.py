"""Checks of a replay against PyTorch's counters: bytes in use after each event, and allocations that were lost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.analyze.posting.checks import check_device, running_bytes
from gpuledger.analyze.posting.device import device_histories
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.model.journal.columns import COLUMNS
from gpuledger.model.journal.journal import REASONS, Action, JournalWriter, Part
from gpuledger.model.journal.reading import read_journal

EVENTS = 6


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Return blocks as events that allocate and free them, and bytes; -1 is before the first event."""
    blocks = []
    for _ in range(draw(st.integers(0, 5))):
        born = draw(st.integers(-1, EVENTS - 1))
        freed = draw(st.sampled_from([*range(max(born, -1), EVENTS), NEVER]))
        blocks.append((born, freed if freed > born or born < 0 else NEVER, draw(st.integers(1, 1000))))
    return blocks


@given(lives())
def test_a_block_is_in_use_after_its_allocation_until_the_event_that_frees_it(
    blocks: list[tuple[int, int, int]],
) -> None:
    born, freed, sizes = (np.array([block[column] for block in blocks], dtype=np.int64) for column in range(3))
    history: Any = SimpleNamespace(events=SimpleNamespace(count=EVENTS), lives=SimpleNamespace(alloc_index=born))
    expected = [sum(size for begin, end, size in blocks if begin < events <= end) for events in range(EVENTS + 1)]
    assert running_bytes(history, freed, sizes).tolist() == expected


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
    part.add("counters", **nothing | held | {"reason": REASONS.index("close"), "alloc_count": 103})
    JournalWriter(tmp_path).write(part)
    journal = read_journal(tmp_path)
    (history,) = device_histories(journal)
    checks = {check["name"]: check for check in check_device(history, journal)}
    recorded = checks["allocations recorded"]
    assert (recorded["expected"], recorded["found"], recorded["ok"]) == (3, 3 - lost, not lost)
    at_close = {name: check["ok"] for name, check in checks.items() if "bytes at close" in name}
    assert at_close == {f"{kind} bytes at close, step 0": not lost for kind in ("allocated", "requested", "active")}
