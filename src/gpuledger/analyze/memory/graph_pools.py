"""Memory that captured CUDA graphs keep for their replays.

A replay allocates nothing: it uses the addresses of its capture. So after the capture, blocks of the graph's pool are
free for the allocator, but no other tensor can have them, and every replay writes to them. A pool therefore holds what
was allocated in it at its highest point, and keeps all of its segments as long as a graph is alive.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.instant import module_paths
from gpuledger.analyze.memory.lifetimes import I64, Lives, allocated_curve, distinct_numbers, read_lives, read_numbers
from gpuledger.analyze.memory.tree import OUTSIDE_PATH
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.model.pools import pool_pair
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.model.pools import GraphPoolFacts
    from gpuledger.model.run import Rank

SHOWN_MODULES = 3


@dataclass(frozen=True)
class GraphPool:
    """The pool of captured CUDA graphs.

    Attributes:
        pool_id: Number of the pool.
        held_bytes: Bytes kept for replays: the most that was allocated in the pool at one time.
        free_bytes: The part of it that is not allocated after the last recorded event.
        modules: Path and bytes of each module in ``held_bytes``, largest first; "" outside modules.
        is_complete: Whether the whole capture was recorded. Otherwise, blocks that the capture had freed are missing.
        reserved_bytes: Bytes of its segments; None in runs of versions that do not have it.

    Source: caching allocator's history, exact for captures in the recorded steps.
    """

    pool_id: int
    held_bytes: int
    free_bytes: int
    modules: tuple[tuple[str, int], ...]
    is_complete: bool
    reserved_bytes: int | None = None


def graph_pools(rank: Rank, device_idx: int) -> tuple[GraphPool, ...]:
    """Return the pools of captured CUDA graphs on one device, by number; empty if there are none."""
    pool_id = read_numbers(rank, "blocks", "pool_id", device_idx, missing=0)
    facts = {one.pool_id: one for one in _graph_pool_facts(rank, device_idx)}
    numbers = sorted({*facts, *(number for number in distinct_numbers(pool_id).tolist() if number > 0)})
    if not numbers:
        return ()
    lives, modules = read_lives(rank, device_idx), read_numbers(rank, "blocks", "module_id", device_idx)
    paths = module_paths(rank)
    return tuple(
        _pool(number, _chosen(lives, pool_id == number), modules[pool_id == number], paths, facts=facts.get(number))
        for number in numbers
    )


def kept_free_bytes(rank: Rank, device_idx: int, index: int) -> I64:
    """Return the free bytes of each segment at an event: those that only replays of CUDA graphs can use; 0 for others.

    In the order of the ``segments`` table. Pools of graphs that were freed in the recording count as other memory.

    Source: caching allocator's history, exact; blocks are placed in segments by address.
    """
    names = ("address", "bytes", "alloc_index")
    address, size, taken = (read_numbers(rank, "segments", name, device_idx) for name in names)
    stays = read_numbers(rank, "segments", "free_index", device_idx, NEVER) == NEVER
    kept = np.zeros(address.size, dtype=bool)
    for one in _graph_pool_facts(rank, device_idx):
        for first, length in one.segments:
            kept |= (address >= first) & (address < first + length)
    kept &= stays & (taken <= index)
    if not kept.any():
        return np.zeros(address.size, dtype=np.int64)
    lives = read_lives(rank, device_idx)
    active = lives.active_at(index)
    order = np.flatnonzero(kept)[np.argsort(address[kept])]
    blocks = read_numbers(rank, "blocks", "address", device_idx)[active]
    place = np.searchsorted(address[order], blocks, side="right") - 1
    inside = (place >= 0) & (blocks < (address + size)[order][place])
    used = np.zeros(address.size, dtype=np.int64)
    np.add.at(used, order[place[inside]], lives.allocated_bytes[active][inside])
    return np.where(kept, size - used, 0)


def _graph_pool_facts(rank: Rank, device_idx: int) -> list[GraphPoolFacts]:
    return [one for one in rank.manifest.graph_pools or () if one.device_idx == device_idx]


def _chosen(lives: Lives, mine: NDArray[np.bool_]) -> Lives:
    return Lives(
        lives.device_idx,
        lives.allocated_bytes[mine],
        lives.requested_bytes[mine],
        lives.alloc_index[mine],
        lives.free_requested_index[mine],
        lives.free_index[mine],
    )


def _pool(
    number: int, lives: Lives, module_id: NDArray[np.int64], paths: dict[int, str], *, facts: GraphPoolFacts | None
) -> GraphPool:
    curve = allocated_curve(lives)
    highest = int(curve.index[np.argmax(curve.bytes)]) if curve.index.size else -1
    held = lives.allocated_at(highest)
    by_module: Counter[str] = Counter()
    for module, size in zip(module_id[held].tolist(), lives.allocated_bytes[held].tolist(), strict=True):
        by_module[paths.get(module, "")] += size
    held_bytes = by_module.total()
    is_recorded = bool((lives.alloc_index >= 0).all())
    return GraphPool(
        pool_id=number,
        held_bytes=held_bytes,
        free_bytes=held_bytes - int(lives.allocated_bytes[lives.allocated_at(lives.last_index)].sum()),
        modules=tuple(by_module.most_common()),
        is_complete=is_recorded and not (facts is not None and facts.is_older),
        reserved_bytes=None if facts is None else facts.reserved_bytes,
    )


def graph_pool_notes(rank: Rank, device_idx: int) -> list[str]:
    """Return a sentence for each pool with memory that seems free."""
    notes = []
    for pool in graph_pools(rank, device_idx):
        if not pool.free_bytes and pool.is_complete:
            continue
        largest = [f"{path or OUTSIDE_PATH} {format_bytes(size)}" for path, size in pool.modules[:SHOWN_MODULES]]
        keep = pool.held_bytes if pool.is_complete or pool.reserved_bytes is None else pool.reserved_bytes
        text = f"CUDA graphs keep {format_bytes(keep)} for replays in pool {pool_pair(pool.pool_id)}. "
        text += f"{format_bytes(keep - pool.held_bytes + pool.free_bytes)} of it is not allocated, but other tensors "
        text += "cannot use it."
        text += f" Largest modules: {', '.join(largest)}." if largest else ""
        notes.append(text if pool.is_complete else text + _older(pool))
    return notes


def _older(pool: GraphPool) -> str:
    if pool.reserved_bytes is None:
        return " Graphs were captured before the recording, so the pool can hold more."
    return " Graphs were captured before the recording, so the modules of freed memory are unknown."
