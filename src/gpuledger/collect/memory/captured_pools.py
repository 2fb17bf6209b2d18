"""Which pools of the allocator have memory of captured CUDA graphs.

A graph that is captured without a pool gets one of its own, which torch numbers apart. With
``torch.cuda.graph_pool_handle()``, as in ``make_graphed_callables`` and ``mode="reduce-overhead"``, the pool has a
number like those of a ``MemPool``. Then only the graph can tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from gpuledger.collect.adapter.other_threads import tracked_objects
from gpuledger.model.pools import pool_number


def captured_pools(numbers: Iterable[int]) -> set[int]:
    """Return those of some pools that have memory of a graph that is alive. Walks all objects if any is doubtful.

    Args:
        numbers: Pools, as from :func:`gpuledger.model.pools.pool_number`.
    """
    known = set(numbers)
    found = {number for number in known if number > 0}
    if found == known - {0}:
        return found
    return found | (known & {number for graph in _live_graphs() if (number := _pool_of(graph))})


def _live_graphs() -> list[Any]:
    kind: Any = torch.cuda.CUDAGraph
    return [thing for things in tracked_objects() for thing in things if issubclass(type(thing), kind)]


def _pool_of(graph: Any) -> int:
    """Return the pool of a graph; 0 if it has captured nothing yet."""
    try:
        return pool_number(*torch.cuda.CUDAGraph.pool(graph))
    except RuntimeError:
        return 0
