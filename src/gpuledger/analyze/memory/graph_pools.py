"""Memory that captured CUDA graphs keep for their replays.

A replay allocates nothing: it uses the addresses of its capture. So after the capture, blocks of the graph's pool are
free for the allocator, but no other tensor can have them, and every replay writes to them. A pool therefore holds what
was allocated in it at its highest point.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.instant import module_paths
from gpuledger.analyze.memory.live import Lives, allocated_curve, read_lives, read_numbers
from gpuledger.analyze.memory.tree import OUTSIDE_PATH
from gpuledger.units import format_bytes

if TYPE_CHECKING:
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

    Source: caching allocator's history, exact for captures in the recorded steps.
    """

    pool_id: int
    held_bytes: int
    free_bytes: int
    modules: tuple[tuple[str, int], ...]
    is_complete: bool


def graph_pools(rank: Rank, device_idx: int) -> tuple[GraphPool, ...]:
    """Return the pools of captured CUDA graphs on one device, by number; empty if there are none."""
    pool_id = read_numbers(rank, "blocks", "pool_id", device_idx, missing=0)
    numbers = [number for number in np.unique(pool_id).tolist() if number > 0]
    if not numbers:
        return ()
    lives, modules = read_lives(rank, device_idx), read_numbers(rank, "blocks", "module_id", device_idx)
    paths = module_paths(rank)
    return tuple(
        _pool(number, _chosen(lives, pool_id == number), modules[pool_id == number], paths) for number in numbers
    )


def _chosen(lives: Lives, mine: NDArray[np.bool_]) -> Lives:
    return Lives(
        lives.device_idx,
        lives.allocated_bytes[mine],
        lives.requested_bytes[mine],
        lives.alloc_index[mine],
        lives.free_requested_index[mine],
        lives.free_index[mine],
    )


def _pool(number: int, lives: Lives, module_id: NDArray[np.int64], paths: dict[int, str]) -> GraphPool:
    curve = allocated_curve(lives)
    highest = int(curve.index[np.argmax(curve.bytes)])
    held = lives.allocated_at(highest)
    by_module: Counter[str] = Counter()
    for module, size in zip(module_id[held].tolist(), lives.allocated_bytes[held].tolist(), strict=True):
        by_module[paths.get(module, "")] += size
    held_bytes = by_module.total()
    return GraphPool(
        pool_id=number,
        held_bytes=held_bytes,
        free_bytes=held_bytes - int(lives.allocated_bytes[lives.allocated_at(lives.last_index)].sum()),
        modules=tuple(by_module.most_common()),
        is_complete=bool((lives.alloc_index >= 0).all()),
    )


def graph_pool_notes(rank: Rank, device_idx: int) -> list[str]:
    """Return a sentence for each pool with memory that seems free."""
    notes = []
    for pool in graph_pools(rank, device_idx):
        if not pool.free_bytes and pool.is_complete:
            continue
        largest = [f"{path or OUTSIDE_PATH} {format_bytes(size)}" for path, size in pool.modules[:SHOWN_MODULES]]
        text = (
            f"CUDA graphs keep {format_bytes(pool.held_bytes)} for replays in pool {pool.pool_id}. "
            f"{format_bytes(pool.free_bytes)} of it is not allocated, but other tensors cannot use it. "
            f"Largest modules: {', '.join(largest)}."
        )
        missing = " Graphs were captured before the recording, so the pool can hold more."
        notes.append(text if pool.is_complete else text + missing)
    return notes
