"""A GPU's allocator made of numbers: snapshots as torch gives them, at an out-of-memory error."""

from __future__ import annotations

from typing import Any

MIB = 1 << 20
BASE = 0x7F00_0000_0000
SEGMENT_BYTES = 20 * MIB


def snapshot(
    live: list[int],
    free: list[int],
    *,
    events: list[tuple[str, int, int]] = (),  # type: ignore[assignment]
    stream: int = 0,
    private_free: list[int] | None = None,
) -> dict[str, Any]:
    """Return a snapshot with one block per size: ``live`` allocated, ``free`` between them, in segments of their own.

    ``private_free`` are free blocks in a CUDA graph's pool. ``events`` are action, address and size.
    """
    segments = []
    address = BASE
    kinds = [("active_allocated", live, (0, 0)), ("inactive", free, (0, 0)), ("inactive", private_free or [], (1, 0))]
    for state, sizes, pool in kinds:
        for size in sizes:
            segments.append(
                {
                    "device": 0,
                    "address": address,
                    "total_size": size,
                    "stream": stream,
                    "segment_type": "large" if size > MIB else "small",
                    "segment_pool_id": pool,
                    "is_expandable": False,
                    "blocks": [{"address": address, "size": size, "requested_size": size, "state": state}],
                }
            )
            address += size
    trace = [
        {"action": action, "addr": place, "size": size, "stream": stream, "time_us": number}
        for number, (action, place, size) in enumerate(events)
    ]
    return {"segments": segments, "device_traces": [trace], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}}


def counters(allocated_bytes: int, allocations: int = 100) -> dict[str, Any]:
    """Return the allocator's counters as torch gives them, as far as they are read at an error."""
    return {
        "allocated_bytes": {"all": {"current": allocated_bytes, "peak": allocated_bytes}},
        "reserved_bytes": {"all": {"current": allocated_bytes}},
        "allocation": {"all": {"current": 10, "allocated": allocations}},
        "num_alloc_retries": 1,
    }
