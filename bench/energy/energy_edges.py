"""Measures whether an energy window holds the energy of a load that begins and ends with it, between idle times.

Each burst is measured twice: by a window from its first launch to its end, and by one that begins and ends while the
GPU is idle, less what the idle GPU takes in between. The difference is told in ms of the step in power: how far the
edges stand from where they are said to be.

Usage: python bench/energy/energy_edges.py --out bench/energy/results/h200/energy_edges.json   (50 s)
"""

from __future__ import annotations

import argparse
import itertools
import queue
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

from gpuledger.cards.energy_edges import find_edge
from gpuledger.cards.nvml import NvmlCard
from gpuledger.model.energy_window import Edge, measure_window

ASIDE_S, IDLE_S = 0.35, 0.8
"""How far the outer windows' edges lie from a burst, and how long the idle GPU is measured between bursts."""


class Edges:
    """Finds edges in a thread of its own, so that the load is not kept waiting."""

    def __init__(self, card: NvmlCard) -> None:
        self._asked: queue.Queue[tuple[int, list[Edge | None]] | None] = queue.Queue()
        self._card = card
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def now(self) -> list[Edge | None]:
        """Ask for the edge at this moment; it will be in the list that is returned."""
        place: list[Edge | None] = []
        self._asked.put((time.time_ns(), place))
        return place

    def end(self) -> None:
        """Wait for the last edge."""
        self._asked.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            asked[1].append(find_edge(asked[0], self._card))


@dataclass(frozen=True)
class Burst:
    """Edges around one burst, each in a list of one."""

    before: list[Edge | None]
    start: list[Edge | None]
    end: list[Edge | None]
    after: list[Edge | None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bursts", type=int, default=16)
    parser.add_argument("--burst-s", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    pynvml.nvmlInit()
    work = _calibrated_load(args.burst_s)
    edges = Edges(NvmlCard(pynvml, 0))
    bursts = [_burst(edges, work, number) for number in range(args.bursts)]
    edges.end()
    results = {"environment": describe_environment("cuda"), **summarize(bursts[1:])}
    write_results(args.out, results)
    print({name: value for name, value in results.items() if name not in ("environment", "rows")})


def _calibrated_load(seconds: float) -> Any:
    """Return what keeps the GPU busy for so long, and waits for it."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def run(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            torch.mm(a, a)
        torch.cuda.synchronize()
        return time.perf_counter() - started

    run(200)
    count = max(round(seconds / (run(400) / 400)), 1)
    return lambda: run(count)


def _burst(edges: Edges, work: Any, number: int) -> Burst:
    time.sleep(IDLE_S + 0.0137 * number % 0.1)
    before = edges.now()
    time.sleep(ASIDE_S)
    start = edges.now()
    work()
    end = edges.now()
    time.sleep(ASIDE_S)
    return Burst(before, start, end, edges.now())


def summarize(bursts: list[Burst]) -> dict[str, Any]:
    """Return how far the windows on the load's edges are from those around them, and what lies beside them.

    ``lead_j`` and ``tail_j`` are what the idle stretches before and after a burst hold beyond the idle GPU's power:
    a tail is what the GPU takes to come to rest, as well as an end edge that stands too early.
    """
    rows = []
    for earlier, burst in itertools.pairwise(bursts):
        found = [earlier.after[0], *(place[0] for place in (burst.before, burst.start, burst.end, burst.after))]
        rested, before, start, end, after = (edge for edge in found if edge is not None)
        idle_j, idle_s = _window(rested, before)
        idle_w = idle_j / idle_s
        (lead_j, lead_s), (inner_j, inner_s), (tail_j, tail_s) = (
            _window(*pair) for pair in ((before, start), (start, end), (end, after))
        )
        outer_j, outer_s = _window(before, after)
        true_j = outer_j - idle_w * (outer_s - inner_s)
        step_w = true_j / inner_s - idle_w
        rows.append(
            {
                "burst_j": true_j,
                "off_j": inner_j - true_j,
                "off_ms": (inner_j - true_j) / step_w * 1e3,
                "lead_j": lead_j - idle_w * lead_s,
                "tail_j": tail_j - idle_w * tail_s,
                "idle_w": idle_w,
                "stated_j": measure_window(start, end).uncertainty_j or 0.0,
            }
        )
    medians = {f"{name}_median": statistics.median(row[name] for row in rows) for name in rows[0]}
    spread_ms = statistics.pstdev(row["off_ms"] for row in rows)
    return {"bursts": len(rows), **medians, "off_ms_spread": spread_ms, "rows": rows}


def _window(start: Edge, end: Edge) -> tuple[float, float]:
    """Return joules and seconds of a window."""
    window = measure_window(start, end)
    if window.energy_j is None:
        raise SystemExit("the counter is missing, or a window was shorter than two of its ticks")
    return window.energy_j, (window.end_ns - window.start_ns) / 1e9


if __name__ == "__main__":
    main()
