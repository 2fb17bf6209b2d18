"""Measures how often the energy of random loads lies within the stated uncertainty of its window, on all GPUs here.

Each round draws a pattern of bursts and idle stretches, and repeats it. Each repetition has a window of its own, which
begins and ends with its load. The truth of one repetition is the energy of all of them together, without the idle
stretches between, divided by their number: a long window knows its ends well.

Usage: python bench/energy/energy_random_windows.py --out bench/energy/results/h200/energy_random_windows.json   (110 s)
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pynvml
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from energy_edges import Edges
from environment import describe_environment, write_results

from gpuledger.cards.nvml import NvmlCard
from gpuledger.model.energy_window import Edge, measure_window

REPEATS, ASIDE_S, AWAY_S = 6, 0.7, 0.15
"""Repetitions of a pattern, the idle time between two, and the part of it next to a load that is not taken as idle."""
Load = Any
Place = list[Edge | None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--time-limit-s", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    pynvml.nvmlInit()
    numbers = list(range(torch.cuda.device_count()))
    loads = [_load(number) for number in numbers]
    edges = [Edges(NvmlCard(pynvml, number)) for number in numbers]
    drawn, until_s, rows = random.Random(options.seed), time.monotonic() + options.time_limit_s, []
    while time.monotonic() < until_s:
        rows += _round(edges, loads, drawn)
    for one in edges:
        one.end()
    results = {"machine": describe_environment("cuda"), "gpus": len(numbers), **summarize(rows), "rows": rows}
    write_results(options.out, results)
    print({name: value for name, value in results.items() if name not in ("machine", "rows")})


def _load(number: int) -> Load:
    """Return what keeps a GPU busy for about so many seconds, without waiting for it."""
    a = torch.randn(8192, 8192, device=f"cuda:{number}", dtype=torch.bfloat16)

    def run(count: int) -> None:
        for _ in range(count):
            torch.mm(a, a)

    run(300)
    torch.cuda.synchronize(number)
    started = time.perf_counter()
    run(300)
    torch.cuda.synchronize(number)
    each_s = (time.perf_counter() - started) / 300
    return lambda seconds: run(max(round(seconds / each_s), 1))


def _round(edges: list[Edges], loads: list[Load], drawn: random.Random) -> list[dict[str, Any]]:
    """Return one row for each repetition of a pattern: error and stated uncertainty, summed over the GPUs, in J."""
    bursts = [(10 ** drawn.uniform(-1, 0), drawn.uniform(0.05, 0.4)) for _ in range(drawn.randint(1, 3))]
    time.sleep(ASIDE_S)
    starts, ends, idle = [], [], []
    for _ in range(REPEATS):
        starts.append([one.now() for one in edges])
        for busy_s, idle_s in bursts:
            for load in loads:
                load(busy_s)
            torch.cuda.synchronize()
            if (busy_s, idle_s) != bursts[-1]:
                time.sleep(idle_s)
        ends.append([one.now() for one in edges])
        time.sleep(AWAY_S)
        idle.append([one.now() for one in edges])
        time.sleep(ASIDE_S - 2 * AWAY_S)
        idle.append([one.now() for one in edges])
        time.sleep(AWAY_S)
    truth_j = (_energy_j(starts[0], ends[-1]) - _rests_j(starts, ends, idle)) / REPEATS
    rows = []
    for start, end in zip(starts, ends, strict=True):
        found = [measure_window(*_known(one, other)) for one, other in zip(start, end, strict=True)]
        if any(one.energy_j is None or one.uncertainty_j is None for one in found):
            continue
        rows.append(
            {
                "seconds": (found[0].end_ns - found[0].start_ns) / 1e9,
                "truth_j": truth_j,
                "off_j": sum(one.energy_j or 0.0 for one in found) - truth_j,
                "stated_j": sum(one.uncertainty_j or 0.0 for one in found),
            }
        )
    return rows


def _known(start: Place, end: Place) -> tuple[Edge, Edge]:
    while not (start and end):
        time.sleep(0.01)
    if start[0] is None or end[0] is None:
        raise SystemExit("the energy counter does not change")
    return start[0], end[0]


def _seconds(first: Place, last: Place) -> float:
    """Return the time between two edges, in s."""
    start, end = _known(first, last)
    return (end.at_ns - start.at_ns) / 1e9


def _energy_j(starts: list[Place], ends: list[Place]) -> float:
    """Return the energy between two edges on all GPUs, in J."""
    found = [measure_window(*_known(start, end)).energy_j for start, end in zip(starts, ends, strict=True)]
    return sum(energy_j or 0.0 for energy_j in found)


def _rests_j(starts: list[list[Place]], ends: list[list[Place]], idle: list[list[Place]]) -> float:
    """Return the energy of the idle stretches between repetitions, at the idle power in their middle, in J."""
    pairs = list(zip(idle[::2], idle[1::2], strict=True))
    idle_s = [_seconds(first[0], last[0]) for first, last in pairs]
    idle_w = sum(_energy_j(first, last) for first, last in pairs) / sum(idle_s)
    between_s = [_seconds(end[0], start[0]) for end, start in zip(ends[:-1], starts[1:], strict=True)]
    return idle_w * sum(between_s)


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the number of windows, the share that holds the truth, the mean error and the median uncertainty."""
    return {
        "windows": len(rows),
        "held_frac": fmean(abs(row["off_j"]) <= row["stated_j"] for row in rows),
        "bias_j": fmean(row["off_j"] for row in rows),
        "stated_median_j": median(row["stated_j"] for row in rows),
    }


if __name__ == "__main__":
    main()
