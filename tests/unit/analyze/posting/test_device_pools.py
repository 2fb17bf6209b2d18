"""Pools from snapshots: by address, and none where the snapshots do not agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuledger.analyze.posting.device import find_pool_ids, pools_of_graphs
from gpuledger.model.journal.journal import REASONS, Part
from gpuledger.model.journal.reading import Journal, journal_of
from gpuledger.model.pools import UNKNOWN_POOL


def journal(*rows: tuple[int, int, int, int]) -> Journal:
    """Return a journal with segments of ``(snapshot, address, bytes, pool)`` on device 0."""
    part = Part()
    for snapshot_id, address, size_bytes, pool_id in rows:
        part.add(
            "snapshot_segments",
            snapshot_id=snapshot_id,
            device_idx=0,
            address=address,
            bytes=size_bytes,
            stream=0,
            small=False,
            expandable=False,
            pool_id=pool_id,
        )
    return journal_of([part])


def pools(history: Journal, *addresses: int) -> list[int | None]:
    found = find_pool_ids(history, 0, np.array(addresses, dtype=np.int64))
    return [None if pool == UNKNOWN_POOL else int(pool) for pool in found]


def test_a_block_has_its_segments_pool() -> None:
    history = journal((0, 1000, 100, 0), (0, 2000, 100, 3), (1, 3000, 100, -1))
    assert pools(history, 1000, 1099, 2050, 3000) == [0, 0, 3, -1]


def test_what_no_snapshot_shows_is_unknown() -> None:
    history = journal((0, 1000, 100, 2))
    assert pools(history, 999, 1100, 1 << 50) == [None, None, None]
    assert pools(journal(), 1000) == [None]


def test_an_address_in_two_pools_in_turn_is_unknown() -> None:
    history = journal((0, 1000, 100, 0), (1, 1000, 50, 4))
    assert pools(history, 1020, 1070) == [None, 0]


def with_snapshots(history: Journal, *reasons: str, captured: list[int] | None = None) -> Journal:
    """Return the journal with numbered snapshots, and what the recorder said of captured pools."""
    part = Part()
    for number, reason in enumerate(reasons):
        part.add(
            "snapshots", snapshot_id=number, reason=REASONS.index(reason), device_idx=0, event_count=0, t_ns=number
        )
    if captured is not None:
        part.facts["captured_pools"] = captured
    found = journal_of([part])
    return replace(found, tables={**found.tables, "snapshot_segments": history.tables["snapshot_segments"]})


def test_pools_with_graphs_are_those_of_the_last_snapshot() -> None:
    rows = ((0, 1000, 100, 3), (0, 2000, 100, 4), (1, 2000, 100, 3), (1, 1000, 50, 3), (1, 3000, 20, -2), (1, 4, 1, 0))
    said = with_snapshots(journal(*rows), "open", "close", captured=[-2, 3, 4])
    assert pools_of_graphs(said) == [
        {"device_idx": 0, "pool_id": -2, "segments": [(3000, 20)], "is_older": False},
        {"device_idx": 0, "pool_id": 3, "segments": [(1000, 50), (2000, 100)], "is_older": True},
    ]
    assert pools_of_graphs(with_snapshots(journal(*rows), "open", "close", captured=[3])) != []
    assert pools_of_graphs(with_snapshots(journal(*rows), "open", "close")) is None
    assert pools_of_graphs(with_snapshots(journal(), captured=[])) is None
