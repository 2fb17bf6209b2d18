"""Measures recordings of sharded training on two GPUs: peaks against torch's counters, categories, and overhead.

A Llama-shaped model is trained in each way twice, without recording and under ``gpuledger run``. Each rank prints the
allocator's peaks and its step times. A last run has a rank that sleeps 30 ms in each step. Ways that do not fit in
``--limit-s`` are named in ``not_run``.

Usage: python bench/memory/sharded.py --out bench/memory/results/h200/sharded.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import describe_environment, write_results
from sharded_train import WAYS

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.overview.balance import build_balance
from gpuledger.analyze.ranks.rank_set import build_rank_set
from gpuledger.model.run import Rank
from gpuledger.services.runs import load

WINDOW = 3
LAUNCH = """
import os, subprocess, sys
ranks = int(os.environ["WORLD_SIZE"])
started = [subprocess.Popen(sys.argv[1:], env={**os.environ, "RANK": str(rank)}) for rank in range(ranks)]
sys.exit(max(abs(one.wait()) for one in started))
"""


def train(
    way: str, place: Path, given: argparse.Namespace, *more: str, run: Path | None = None
) -> list[dict[str, Any]]:
    """Train in one way; return what each rank wrote. With ``run``, record into it."""
    name = f"{way}-{'bare' if run is None else 'recorded'}"
    (place / "launch.py").write_text(LAUNCH, encoding="utf-8")
    words = [sys.executable, str(LIB / "sharded_train.py"), way, str(place / name), "--size", given.size]
    words += ["--device", given.device, "--steps", str(given.steps), "--window", str(WINDOW), *more]
    command = [sys.executable, str(place / "launch.py"), *words]
    if run is not None:
        passes = "memory,time" if more else "memory"
        options = ["-q", "--out", str(run), "--steps", f"1:{WINDOW}", "--passes", passes]
        command = [sys.executable, "-m", "gpuledger", "run", *options, "--", *command]
    env = {**os.environ, "WORLD_SIZE": str(given.ranks), "STORE": str(place / f"{name}.store")}
    subprocess.run(command, env=env, check=True, timeout=120, stdout=subprocess.DEVNULL)
    return [json.loads((place / f"{name}.{rank}.json").read_text(encoding="utf-8")) for rank in range(given.ranks)]


def rank_figures(rank: Rank, printed: dict[str, Any]) -> dict[str, Any]:
    """Return what a rank's recording says beside what torch's counters said."""
    instant = find_peak(rank)
    breakdown = break_down(rank, instant, by=("category",))
    sizes = {one.category: one.bytes for one in breakdown.accounts}
    balance = build_balance(rank)
    return {
        "recorded_peak_allocated_bytes": breakdown.allocated_bytes,
        "torch_peak_allocated_bytes": printed["peak_after_window_bytes"],
        "torch_peak_of_program_bytes": printed["peak_allocated_bytes"],
        "categories_bytes": sizes,
        "other_frac": sizes.get("other", 0) / breakdown.allocated_bytes,
        "balance": {line.name: line.bytes for line in balance.lines if line.level < 2},
        "unaccounted_bytes": balance.unaccounted_bytes,
        "failed_checks": [check.to_json() for check in rank.manifest.checks if not check.ok],
        "notes": list(rank.manifest.notes),
    }


def overhead(bare: list[dict[str, Any]], recorded: list[dict[str, Any]], first: int, last: int) -> float:
    """Return the ratio of median step times, recorded to bare, of some steps; the first step is left out."""
    found = [
        statistics.median(time_s for one in runs for time_s in one["step_times_s"][first:last])
        for runs in (recorded, bare)
    ]
    return found[0] / found[1]


def measure(way: str, place: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one way."""
    run = place / f"{way}.ledger"
    bare, recorded = train(way, place, given), train(way, place, given, run=run)
    loaded = load(run)
    ranks = build_rank_set(loaded)
    return {
        "ranks": [rank_figures(rank, printed) for rank, printed in zip(loaded.ranks, recorded, strict=True)],
        "bare_torch_peak_of_program_bytes": [one["peak_allocated_bytes"] for one in bare],
        "overhead_in_window": overhead(bare, recorded, 1, WINDOW),
        "overhead_after_window": overhead(bare, recorded, WINDOW + 1, given.steps),
        "spreads": [] if ranks is None else [asdict(one) for one in ranks.categories],
        "whole_weights": [] if ranks is None else [asdict(one) for one in ranks.whole_weights],
    }


def straggler(place: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return what is said about a rank that sleeps 30 ms in each step."""
    run = place / "straggler.ledger"
    train("ddp", place, given, "--sleep-ms", "30", run=run)
    ranks = build_rank_set(load(run))
    waits = None if ranks is None else ranks.waits
    found = None if waits is None else waits.straggler
    return {"waits": None if waits is None else asdict(waits), "straggler": None if found is None else found.rank}


def main() -> None:
    """Measure all ways and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--size", default="1b")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--limit-s", type=float, default=225.0)
    given = parser.parse_args()
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    not_run, began, longest_s = [], time.monotonic(), 0.0
    with tempfile.TemporaryDirectory() as directory:
        jobs = [(way, measure) for way in given.ways.split(",")]
        for way, job in [*jobs, ("straggler", None)]:
            begin = time.monotonic()
            if begin - began + longest_s > given.limit_s:
                not_run.append(way)
                continue
            try:
                results[way] = straggler(Path(directory), given) if job is None else job(way, Path(directory), given)
            except (subprocess.SubprocessError, OSError, ValueError) as error:
                failed[way] = repr(error)[:500]
            longest_s = max(longest_s, time.monotonic() - begin)
            print(way, f"{time.monotonic() - begin:.1f} s", "failed" if way in failed else "", flush=True)
    document = {
        **describe_environment(given.device),
        "size": given.size,
        "ranks": given.ranks,
        "steps": given.steps,
        "window": WINDOW,
        "wall_s": time.monotonic() - began,
        "not_run": not_run,
        "failed": failed,
        "ways": results,
    }
    write_results(Path(given.out), document)


if __name__ == "__main__":
    main()
