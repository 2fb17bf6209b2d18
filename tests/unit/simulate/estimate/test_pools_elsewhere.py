"""Peaks of a program on other GPUs: each pool of the allocator is replayed alone, once for equal requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from estimated_requests import requests_of_rows
from hypothesis import given
from hypothesis import strategies as st
from present import present

from gpuledger.analyze.allocator.pool_history import Event, PoolHistory, replay_pool
from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.model.journal.journal import Action
from gpuledger.simulate.catalogue import GpuModel, find_card
from gpuledger.simulate.elsewhere import REPLACE, Elsewhere
from gpuledger.simulate.estimate import fit
from gpuledger.simulate.traits import Size

MIB = 1 << 20
ALLOC, FREE = int(Action.ALLOC), int(Action.FREE_REQUESTED)
Program = tuple[list[tuple[int, int, int]], dict[str, Any], list[GpuModel]]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Return requests and frees of a program (action, address, bytes), their changes on other GPUs, and the GPUs."""
    sizes = st.sampled_from([512, 1000, MIB // 2, MIB, MIB + 1, 3 * MIB, 11 * MIB, 30 * MIB])
    cards = [find_card(name) for name in ("h200", "t4", "a100-80gb")]
    elsewhere, rows = Elsewhere(), list[tuple[int, int, int]]()
    live, added = list[int](), list[int]()
    for position in range(draw(st.integers(1, 40))):
        change = draw(st.sampled_from(["no", "no", "replace", "add", "remove"]))
        if change == "add":
            added.append(elsewhere.add(position, Size(0, (0, draw(sizes), draw(sizes))), 0, 0))
        elif change == "remove" and added:
            elsewhere.remove(position, added.pop())
        if draw(st.booleans()) and live:
            address = live.pop(draw(st.integers(0, len(live) - 1)))
            rows.append((FREE, address, 0))
            continue
        own_bytes = draw(sizes)
        if change == "replace":
            elsewhere.replace(position, Size(own_bytes, (own_bytes, draw(st.just(0) | sizes), draw(sizes))))
        rows.append((ALLOC, position + 1, own_bytes))
        live.append(position + 1)
    traits = [[card.multiprocessors, *card.compute_capability] for card in cards]
    return rows, {**elsewhere.fact(), "traits": traits, "approximate": [False] * 3}, cards


@given(programs())
def test_the_peaks_of_both_pools_are_those_of_all_requests(
    program: Program,
) -> None:
    rows, elsewhere, cards = program
    requests = requests_of_rows(rows, elsewhere)
    for card in cards:
        there = requests.on(card)
        counters = present(there.replay()).counters
        assert there.peak_bytes == (counters.peak_allocated_bytes, counters.peak_reserved_bytes)


def test_a_pool_with_the_same_requests_on_several_gpus_is_replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [find_card(name) for name in ("h200", "t4", "a100-80gb")]
    traits = [[card.multiprocessors, *card.compute_capability] for card in cards]
    changes = [[0, REPLACE, -1, 0, -1, -1]]
    elsewhere = {"sizes": [[8 * MIB, 4 * MIB, 2 * MIB]], "changes": changes, "approximate": [False] * 3}
    rows = [(ALLOC, 1, 8 * MIB), (FREE, 1, 0), (ALLOC, 1, MIB), (FREE, 1, 0)]
    requests = requests_of_rows(rows, {**elsewhere, "traits": traits})
    replayed: list[list[int]] = []

    def replay(events: Sequence[Event], settings: AllocatorSettings) -> PoolHistory:
        replayed.append([size_bytes for _, action, _, size_bytes, _ in events if action == ALLOC])
        return replay_pool(events, settings)

    monkeypatch.setattr(fit, "replay_pool", replay)
    assert [requests.on(card).peak_bytes[0] // MIB for card in cards] == [8, 4, 2]
    assert sorted(replayed) == [[MIB], [2 * MIB], [4 * MIB], [8 * MIB]]
