"""Out-of-memory errors: record the requested and free bytes before the error reaches the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuledger.collect.adapter import torch_private


def watch(
    guard: Callable[[Callable[..., None]], Callable[..., None]],
    happened: Callable[[dict[str, Any]], object],
    *,
    reads_blocks: bool = True,
) -> None:
    """Call ``happened(facts)`` whenever CUDA runs out of memory.

    torch cannot unregister this observer, so the guard disables it when the recording ends.

    Args:
        guard: Wraps the observer.
        happened: Gets the requested and the free bytes.
        reads_blocks: Whether the facts have the largest free block, for which all blocks are read.
    """

    def observe(device_idx: int, tried_bytes: int, total_bytes: int, free_bytes: int) -> None:
        happened(
            {
                "device_idx": int(device_idx),
                "tried_bytes": int(tried_bytes),
                "total_bytes": int(total_bytes),
                "free_bytes": int(free_bytes),
                **({"largest_free_bytes": _largest_now(device_idx)} if reads_blocks else {}),
            }
        )

    torch_private.watch_out_of_memory(guard(observe))


def _largest_now(device_idx: int) -> int:
    return largest_free_block_bytes(torch_private.light_snapshot(), device_idx)


def largest_free_block_bytes(snapshot: dict[str, Any], device_idx: int) -> int:
    """Return the size of a device's largest free block in a snapshot; 0 if there is none."""
    return max(
        (
            int(block["size"])
            for segment in snapshot["segments"]
            if segment["device"] == device_idx
            for block in segment["blocks"]
            if block["state"] == "inactive"
        ),
        default=0,
    )
