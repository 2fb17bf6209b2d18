"""Pools of the caching allocator as one number, as in ``blocks.pool_id``."""

from __future__ import annotations

import numpy as np

UNKNOWN_POOL = np.int32(np.iinfo(np.int32).min)
"""Pool of a block with a segment that is in no snapshot."""


def pool_number(of_graph: int, of_program: int) -> int:
    """Return 0 for the default pool, n for the pool of CUDA graph n, and -n for the program's own pool n.

    Source: ``segment_pool_id`` of torch's snapshots, a pair.
    """
    return of_graph or -of_program


def pool_pair(number: int) -> tuple[int, int]:
    """Return a pool as torch's pair: number of the CUDA graph's pool, number of the program's pool."""
    return max(number, 0), max(-number, 0)
