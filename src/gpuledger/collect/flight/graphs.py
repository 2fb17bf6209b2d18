"""Autograd graphs that tensors of the program keep, and how large they are."""

from __future__ import annotations

from collections import deque
from typing import Any

from gpuledger.collect.adapter.program_objects import grad_fn_of
from gpuledger.collect.flight.time_limit import CHECK_EVERY, TimeLimit
from gpuledger.model.flight_facts import COUNTED_NODES

LONGEST_CHAIN = 20_000
"""Largest number of autograd nodes that are followed along one chain of a graph of more than COUNTED_NODES nodes."""


def keeps_graph(tensor: Any) -> bool:
    """Return whether a tensor keeps an autograd graph."""
    return _top_of(tensor) is not None


def nodes_below(tensor: Any, limit: TimeLimit) -> int:
    """Return the number of autograd nodes that a tensor keeps alive: from :data:`COUNTED_NODES` on, at least this many.

    A total that keeps every step's graph is a chain with a graph at each link. Its length grows in a large graph, too.

    Raises:
        OutOfTimeError: The time was over before all were counted.
    """
    top = _top_of(tensor)
    waiting: deque[Any] = deque([top])
    seen: set[Any] = set()
    while waiting and len(seen) < COUNTED_NODES:
        node = waiting.popleft()
        if node is None or node in seen:
            continue
        if len(seen) % CHECK_EVERY == 0:
            limit.check()
        seen.add(node)
        waiting.extend(following_nodes(node))
    if not waiting:
        return len(seen)
    return len(seen) + max(_chain_beyond(seen, top, end, limit) for end in (0, -1))


def _top_of(tensor: Any) -> Any:
    try:
        return grad_fn_of(tensor)
    except RuntimeError:  # a view that was modified in place
        return None


def following_nodes(node: Any) -> list[Any]:
    """Return the autograd nodes that run after a node, in the order of its inputs."""
    return [following for following, _ in getattr(node, "next_functions", ()) if following is not None]


def _chain_beyond(seen: set[Any], node: Any, end: int, limit: TimeLimit) -> int:
    """Return how many nodes the chain of first (0) or last (-1) following nodes has outside a set."""
    count = 0
    for length in range(LONGEST_CHAIN):
        if length % CHECK_EVERY == 0:
            limit.check()
        following = following_nodes(node)
        if not following:
            break
        node = following[end]
        count += node not in seen
    return count
