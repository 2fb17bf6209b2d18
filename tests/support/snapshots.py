"""Memory snapshots as torch writes them, made by an allocator whose state is known at every event."""

from __future__ import annotations

import pickle
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plain_allocator import Allocator

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
)
"""torch's words by :class:`gpuledger.model.journal.journal.Action`."""
STATES = ("inactive", "active_allocated", "active_pending_free")
START_US = 1_700_000_000_000_000


def new_text(text: str) -> str:
    """Return an equal text that is another object, as torch makes one for every event."""
    return "".join(list(text))


def event(number: int, action: str, address: int, size: int, **more: Any) -> dict[str, Any]:
    """Return one entry of a trace with its keys in torch's order."""
    return {
        "action": action,
        "device_free" if action == "oom" else "addr": address,
        "size": size,
        "stream": more.pop("stream", 0),
        "time_us": START_US + 7 * number,
        "compile_context": new_text("N/A"),
        "user_metadata": more.pop("user_metadata", ""),
        **more,
    }


def segment(
    device: int, address: int, blocks: list[tuple[int, int, int]], *, expandable: bool = False
) -> dict[str, Any]:
    """Return one segment; ``blocks`` are bytes, requested bytes and state, one after the other."""
    rows, place = [], address
    for size, requested, state in blocks:
        rows.append({"address": place, "size": size, "requested_size": requested, "state": STATES[state], "frames": []})
        place += size
    return {
        "device": device,
        "address": address,
        "total_size": place - address,
        "allocated_size": sum(size for size, _, state in blocks if state == 1),
        "active_size": sum(size for size, _, state in blocks if state),
        "requested_size": sum(requested for _, requested, state in blocks if state == 1),
        "stream": 0,
        "segment_type": "small" if place - address == 2 << 20 else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": expandable,
        "frames": [],
        "blocks": rows,
    }


def snapshot(segments: list[dict[str, Any]], *traces: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    """Return a whole snapshot."""
    kept = {"max_split_size": -1, "expandable_segments": False, "roundup_power2_divisions": {"1": 0}, **settings}
    return {
        "segments": segments,
        "device_traces": list(traces),
        "allocator_settings": kept,
        "external_annotations": [],
    }


def snapshot_of(
    allocator: Allocator, frames: list[list[dict[str, Any]]] | None = None, device: int = 0
) -> dict[str, Any]:
    """Return the snapshot of an allocator model: its blocks now, and its events as the trace."""
    segments: dict[int, list[Any]] = {}
    for block in sorted(allocator.blocks, key=lambda block: block.address):
        segments.setdefault(block.segment, []).append((block.size, block.requested if block.state else 0, block.state))
    trace = [
        event(number, ACTIONS[action], address, size, **({"frames": frames[number % len(frames)]} if frames else {}))
        for number, (action, address, size) in enumerate(allocator.events)
    ]
    trace.append(event(len(trace), "snapshot", 0, 0))
    rows = [segment(device, address, blocks) for address, blocks in segments.items()]
    return snapshot(rows, *([] for _ in range(device)), trace)


def some_frames(count: int, depth: int, seed: int = 0) -> list[list[dict[str, Any]]]:
    """Return stacks that share their frames, as torch's symbolizer gives them."""
    dice = random.Random(seed)
    frames = [
        {
            "filename": f"/home/me/{'train' if number % 5 else 'torch/nn/linear'}.py",
            "line": number,
            "name": f"f{number}",
        }
        for number in range(depth * 4)
    ]
    return [[dice.choice(frames) for _ in range(depth)] for _ in range(count)]


def dumped(value: Any, protocol: int = 4) -> bytes:
    """Return the pickle that torch writes."""
    return pickle.dumps(value, protocol=protocol)
