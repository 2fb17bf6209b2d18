"""Feeds the simulated allocator with every recorded stream of requests, and counts where it differs from the GPU.

Needs no GPU: the streams are the journals of the grid, as a GPU recorded them (tests/data/h200/estimate_truth).

Usage: python bench/estimate/allocator_streams.py --out bench/estimate/results/h200/allocator_streams.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import ROOT, describe_environment, write_results

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.model.journal.journal import Action
from gpuledger.model.journal.reading import read_journal

HERE = Path(__file__).parent
STREAMS = ROOT / "tests" / "data" / "h200" / "estimate_truth"
SEGMENTS = {Action.SEGMENT_ALLOC: 1, Action.SEGMENT_MAP: 1, Action.SEGMENT_FREE: -1, Action.SEGMENT_UNMAP: -1}


def compare(stream: Path) -> dict[str, Any]:
    """Return how many requests were made, and after how many of them the reserved bytes differ from the GPU's."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "00000.npz").write_bytes(stream.read_bytes())
        journal = read_journal(Path(directory))
    events = journal.tables["events"]
    rows = list(zip(*(events[name].tolist() for name in ("action", "address", "bytes", "stream")), strict=True))
    settings = AllocatorSettings.from_snapshot(journal.facts["allocator_settings"])
    places = deque(address for action, address, _, _ in rows if action == Action.SEGMENT_ALLOC)
    allocator = CachingAllocator(settings, place=None if settings.expandable else lambda _size: places.popleft())
    at: dict[int, int] = {}
    reserved = requests = differing = 0
    for action, address, size, stream_id in rows:
        reserved += SEGMENTS.get(Action(action), 0) * size
        if action == Action.ALLOC:
            at[address] = allocator.malloc(size, stream_id)
            requests += 1
            differing += allocator.counters.reserved_bytes != reserved
        elif action == Action.FREE_REQUESTED:
            allocator.free(at.pop(address))
    counters, found = journal.tables["counters"], allocator.counters
    return {
        "settings": journal.facts["allocator_settings"].get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "requests": requests,
        "requests_with_other_reserved_bytes": differing,
        "peak_reserved_bytes": found.peak_reserved_bytes,
        "peak_reserved_error_bytes": found.peak_reserved_bytes - int(counters["peak_reserved_bytes"].max()),
        "peak_allocated_error_bytes": found.peak_allocated_bytes - int(counters["peak_allocated_bytes"].max()),
    }


def main() -> None:
    """Compare every stream and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=Path, default=STREAMS)
    parser.add_argument("--out", type=Path, default=STREAMS.with_name("allocator_streams.json"))
    arguments = parser.parse_args()
    started_s = time.monotonic()
    streams = {place.stem: compare(place) for place in sorted(arguments.streams.glob("*.npz"))}
    truth = json.loads((HERE / "results" / "h200" / "estimate_truth.json").read_text(encoding="utf-8"))
    results = {
        "recorded_on": truth["environment"],
        "replayed_on": describe_environment("cpu"),
        "wall_s": round(time.monotonic() - started_s, 1),
        "requests": sum(one["requests"] for one in streams.values()),
        "differing": sum(one["requests_with_other_reserved_bytes"] for one in streams.values()),
        "streams": streams,
    }
    write_results(arguments.out, results)
    print(f"{len(streams)} streams, {results['requests']:,} requests, {results['differing']} with other reserved bytes")


if __name__ == "__main__":
    main()
