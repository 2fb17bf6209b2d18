"""Pools of the caching allocator by one number, as ``blocks.pool_id`` has them."""

from __future__ import annotations

import numpy as np

UNKNOWN_POOL = np.int32(np.iinfo(np.int32).min)
"""Stands for the pool of a block whose segment no snapshot shows."""


def pool_number(of_graph: int, of_program: int) -> int:
    """Return 0 for the default pool, a CUDA graph's own pool as its number, one the program made as minus its number.

    Source: ``segment_pool_id`` of torch's snapshots, a pair.
    """
    return of_graph or -of_program


def pool_pair(number: int) -> tuple[int, int]:
    """Return a pool as torch numbers it: a CUDA graph's, the program's."""
    return max(number, 0), max(-number, 0)
