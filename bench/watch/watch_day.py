"""Runs the sampler of `gpuledger watch` for a simulated day at 10 Hz: bytes on disk, and its memory.

Usage: python bench/watch/watch_day.py --out bench/watch/results/cpu/watch_day.json      (some minutes; needs no GPU)
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import ROOT, describe_environment, write_results

sys.path.insert(0, str(ROOT / "tests" / "support"))
from simulated_card import MS, START_NS, Clock, SimulatedCard, order

from gpuledger.analyze.posting.posting import post_rank
from gpuledger.collect.sampling.watch_process import Sampler
from gpuledger.model.journal.journal import JournalWriter, write_compressed

MIB = 1 << 20


def bytes_of(directory: Path) -> int:
    return sum(place.stat().st_size for place in directory.rglob("*") if place.is_file())


def busy_card(clock: Clock, generator: np.random.Generator) -> SimulatedCard:
    """Return a GPU whose watts and bytes change from reading to reading, with one process on it."""
    noise = generator.normal(0, 8, 4096).tolist()
    card = SimulatedCard(clock, watts=lambda at_s: 500 + 150 * (at_s % 60 < 40) + noise[int(at_s * 20) % 4096])
    sizes = (generator.integers(2, 60_000, 4096) * 2 * MIB).tolist()
    card.used_bytes = lambda now_ns: sizes[(now_ns // (300 * MS)) % 4096]
    card.processes = [(os.getpid(), 1 << 33)]
    return card


def sample(rank: Path, hours: float) -> dict[str, Any]:
    """Sample for so many hours; the memory is read each hour."""
    clock = Clock()
    world = clock.world()
    memory_mib: list[float] = []

    def wait_ns(patience_ns: int) -> dict[str, Any] | None:
        if clock.now_ns >= START_NS + len(memory_mib) * 3600 * 10**9:
            memory_mib.append(psutil.Process().memory_info().rss / MIB)
        return clock.wait_ns(patience_ns)

    seconds = hours * 3600
    clock.orders = [
        order(1, do="begin", window=0, name=""),
        order(seconds - 1, do="end", window=0),
        order(seconds, do="stop"),
    ]
    world = type(world)(clock.time_ns, clock.time_ns, wait_ns, parent=lambda: 1)
    card = busy_card(clock, np.random.default_rng(0))
    sampler = Sampler([card], JournalWriter(rank / "journal", write_compressed), 100 * MS, world)
    sampler.prepare(recorder="watch", devices=[{"device_idx": 0, "name": "simulated", "energy_counter": True}])
    started_s = time.monotonic()
    sampler.run()
    return {
        "readings": sampler.readings,
        "missed": sampler.missed,
        "wall_s": round(time.monotonic() - started_s, 1),
        "memory_mib_each_hour": [round(value, 1) for value in memory_mib],
    }


def main() -> None:
    """Sample, post, and write what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hours", type=float, default=24)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rank = Path(scratch) / "rank-0"
        results = {
            "environment": describe_environment("cpu"),
            "hours": arguments.hours,
            **sample(rank, arguments.hours),
        }
        results["journal_bytes"] = bytes_of(rank)
        post_rank(rank)
        results["run_bytes"] = bytes_of(rank)
        results["run_mib"] = round(results["run_bytes"] / MIB, 1)
        results["peak_memory_with_posting_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    write_results(arguments.out, results)
    print(results)


if __name__ == "__main__":
    main()
