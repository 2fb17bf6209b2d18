"""Out-of-memory errors: record the requested and free bytes before the error reaches the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuledger.collect.adapter import torch_private


def watch(
    guard: Callable[[Callable[..., None]], Callable[..., None]], happened: Callable[[dict[str, Any]], None]
) -> None:
    """Call ``happened(facts)`` whenever CUDA runs out of memory.

    torch cannot unregister this observer, so the guard disables it when the recording ends.
    """

    def observe(device_idx: int, tried_bytes: int, total_bytes: int, free_bytes: int) -> None:
        happened(
            {
                "device_idx": int(device_idx),
                "tried_bytes": int(tried_bytes),
                "total_bytes": int(total_bytes),
                "free_bytes": int(free_bytes),
                "largest_free_bytes": _largest_free_block_bytes(device_idx),
            }
        )

    torch_private.watch_out_of_memory(guard(observe))


def _largest_free_block_bytes(device_idx: int) -> int:
    return max(
        (
            int(block["size"])
            for segment in torch_private.light_snapshot()["segments"]
            if segment["device"] == device_idx
            for block in segment["blocks"]
            if block["state"] == "inactive"
        ),
        default=0,
    )
