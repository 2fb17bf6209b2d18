"""Checks of a replay against PyTorch's counters: the bytes in use after each event."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.analyze.posting.checks import running_bytes
from gpuledger.analyze.posting.replay import NEVER

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
