"""Which pool of the caching allocator a segment or a block belongs to: only snapshots tell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuledger.model.journal.journal import Journal
from gpuledger.model.pools import UNKNOWN_POOL


def segment_pools(journal: Journal, device_idx: int) -> dict[int, str]:
    """Return ``segment address -> small, large or expandable`` from every snapshot."""
    table = journal.tables["snapshot_segments"]
    mine = table["device_idx"] == device_idx
    return {
        int(address): "expandable" if expandable else "small" if small else "large"
        for address, small, expandable in zip(
            table["address"][mine], table["small"][mine], table["expandable"][mine], strict=True
        )
    }


def find_pool_ids(journal: Journal, device_idx: int, address: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the pool of the block at each ``address``, as ``blocks.pool_id``; :data:`UNKNOWN_POOL` where none is seen.

    Source: the segments of all snapshots. An address whose segment was in several pools in turn belongs to none.
    """
    found = np.full(address.size, UNKNOWN_POOL, dtype=np.int32)
    doubtful = np.zeros(address.size, dtype=bool)
    table = journal.tables["snapshot_segments"]
    for number in np.unique(table["snapshot_id"]):
        mine = (table["device_idx"] == device_idx) & (table["snapshot_id"] == number)
        order = np.argsort(table["address"][mine])
        starts, sizes, pools = (table[name][mine][order] for name in ("address", "bytes", "pool_id"))
        place = np.searchsorted(starts, address, side="right") - 1
        inside = (place >= 0) & (address < (starts + sizes)[place]) if starts.size else np.zeros(address.size, bool)
        seen = pools[place[inside]].astype(np.int32)
        doubtful[inside] |= (found[inside] != UNKNOWN_POOL) & (found[inside] != seen)
        found[inside] = seen
    found[doubtful] = UNKNOWN_POOL
    return found
