"""Measures the parts of what the allocator's history costs: an event, its Python stack, and switching stacks on.

Blocks of allocations and frees of one small tensor, without the history, with the ring, and with stacks, in turn. Then
what it takes to switch stacks on and off, with the ring and without it. Ends within 30 s.

Usage: python bench/time/history_parts.py --out bench/time/results/h200/history_parts.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import describe_environment, write_results

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.flight.last_events import EVENT_NS, RING_ENTRIES

PAIRS = 20_000
ROUNDS = 15
SWITCHES = 200


def pairs_ns() -> float:
    """Return the time of an allocation of 4 KiB and its free, in ns."""
    started_ns = time.perf_counter_ns()
    for _ in range(PAIRS):
        torch.empty(4096, dtype=torch.uint8, device="cuda")
    return (time.perf_counter_ns() - started_ns) / PAIRS


def with_history() -> dict[str, list[float]]:
    """Return what an allocation and its free take in ns, by what the history keeps."""
    found: dict[str, list[float]] = {"off": [], "ring": [], "ring with stacks": [], "live stacks": []}
    for _ in range(ROUNDS):
        found["off"].append(pairs_ns())
        torch_private.start_ring(RING_ENTRIES)
        pairs_ns()  # fills the ring
        found["ring"].append(pairs_ns())
        torch_private.take_ring_stacks("alloc", RING_ENTRIES)
        found["ring with stacks"].append(pairs_ns())
        torch_private.stop_history()
        torch_private.start_ring(RING_ENTRIES, "state")
        found["live stacks"].append(pairs_ns())
        torch_private.stop_ring()
    return found


def switch_ns(on: Callable[[], None], off: Callable[[], None]) -> dict[str, list[float]]:
    """Return the times that ``on`` and ``off`` take in ns, with an allocation between them."""
    found: dict[str, list[float]] = {"on": [], "off": []}
    for _ in range(SWITCHES):
        for name, switch in (("on", on), ("off", off)):
            started_ns = time.perf_counter_ns()
            switch()
            found[name].append(time.perf_counter_ns() - started_ns)
            torch.empty(4096, dtype=torch.uint8, device="cuda")
    return found


def of(times_ns: list[float]) -> dict[str, float]:
    """Return the median, the shortest and the longest of some times in ns."""
    return {"median_ns": statistics.median(times_ns), "min_ns": min(times_ns), "max_ns": max(times_ns)}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    torch.zeros(1, device="cuda")
    pairs_ns()
    pairs = with_history()
    torch_private.start_ring(RING_ENTRIES)
    pairs_ns()
    ring = switch_ns(
        lambda: torch_private.take_ring_stacks("state", RING_ENTRIES),
        lambda: torch_private.take_ring_stacks(None, RING_ENTRIES),
    )
    torch_private.stop_history()
    live = switch_ns(lambda: torch_private.start_ring(RING_ENTRIES, "state"), torch_private.stop_ring)
    event_ns = [(with_ring - without) / 2 for with_ring, without in zip(pairs["ring"], pairs["off"], strict=True)]
    results = {
        "environment": describe_environment("cuda"),
        "n": ROUNDS,
        "pair": {name: of(times) for name, times in pairs.items()},
        "event": of(event_ns),
        "assumed_event_ns": EVENT_NS,
        "switch": {
            f"{name}, {way}": of(times[way]) for name, times in (("ring", ring), ("live", live)) for way in times
        },
    }
    write_results(out, results)
    for part in ("pair", "switch"):
        print({name: round(one["median_ns"]) for name, one in results[part].items()})
    print("an event:", results["event"])


if __name__ == "__main__":
    main()
