"""Compares recordings of programs with CUDA graphs with torch's counters: peaks, pools, and kernels of replays.

Each way to capture runs in a process of its own. Its first four steps are recorded, and kernels are timed in the steps
after them. ``hand, later`` is recorded from the fourth step on, so that its graph is older than the recording. Replays
of a whole step are no steps, so their kernels are not timed.

Usage: python bench/memory/graph_pools.py --out bench/memory/results/h200/graph_pools.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import describe_environment, write_results

from gpuledger.analyze.memory.graph_pools import graph_pool_notes, graph_pools
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.lifetimes import allocated_curve, read_lives
from gpuledger.analyze.overview.balance import build_balance
from gpuledger.model.run import Rank
from gpuledger.services.runs import load

KINDS = ("hand", "handle", "hand, later", "forked", "callables", "trees", "whole", "whole_compiled")


def record(kind: str, place: Path, limit_s: float) -> dict[str, Any]:
    """Run one program recorded; return what it printed, or how it failed."""
    name, _, later = kind.partition(", ")
    steps = "4:6" if later else "1:4"
    recorder = ["-m", "gpuledger", "run", "-q", "--passes", "memory,time", "--steps", steps, "--out", str(place)]
    command = [sys.executable, *recorder, str(LIB / "graphed_one.py"), name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=max(limit_s, 1.0))
    except subprocess.TimeoutExpired:
        return {"failed": f"no end after {limit_s:.0f} s"}
    if done.returncode or not done.stdout.strip():
        return {"failed": done.stderr[-2000:]}
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


def compare(rank: Rank, printed: dict[str, Any], *, is_later: bool) -> dict[str, Any]:
    """Return what the recording says beside what torch counted."""
    peak = find_peak(rank)
    lines = {line.name: line.bytes for line in build_balance(rank, 0, "end").lines}
    cached = ("free_segments", "graph_pools", "fragmented", "awaiting_free", "allocated")
    pools = graph_pools(rank, 0)
    counters = [row for row in rank.table("counters").to_pylist() if row["device_idx"] == 0]
    reserved_bytes = max(counters, key=lambda row: row["t_ns"] if row["reason"] == "close" else 0)["reserved_bytes"]
    recorded_bytes = int(allocated_curve(read_lives(rank, 0)).at(peak.index))
    return {
        "peak_bytes": recorded_bytes,
        "peak_as_counter": is_later or recorded_bytes == printed["peak_bytes"],
        "pools_as_counter": {str(one.pool_id): one.reserved_bytes for one in pools} == printed["pools"],
        "balance_as_counter": sum(lines.get(name) or 0 for name in cached) == reserved_bytes,
        "pools": [
            {
                "pool_id": one.pool_id,
                "reserved_bytes": one.reserved_bytes,
                "held_bytes": one.held_bytes,
                "without_module_bytes": dict(one.modules).get("", 0),
                "is_complete": one.is_complete,
            }
            for one in pools
        ],
        "kernels": replayed_kernels(rank),
        "notes": [*rank.manifest.notes, *graph_pool_notes(rank, 0)],
        "failed_checks": [check.to_json() for check in rank.manifest.checks if not check.ok],
    }


def replayed_kernels(rank: Rank) -> dict[str, Any]:
    """Return the number and time of kernels that CUDA graphs launched, and the time of those on a compiled kernel."""
    names = {row["name_id"]: row["name"] for row in rank.table("names").to_pylist()}
    spans = [row for row in rank.table("spans").to_pylist() if names.get(row["operator_id"]) == "cudaGraphLaunch"]
    lengths = [row["end_ns"] - row["start_ns"] for row in spans]
    placed = [size for row, size in zip(spans, lengths, strict=True) if row["fusion_id"] is not None]
    on_modules = [size for row, size in zip(spans, lengths, strict=True) if row["module_id"] is not None]
    total = sum(lengths)
    return {
        "count": len(spans),
        "time_ns": total,
        "on_compiled_kernels_frac": sum(placed) / total if total else None,
        "on_modules_frac": sum(on_modules) / total if total else None,
    }


def main() -> None:
    """Measure every kind asked for; write the figures and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bench/memory/results/h200/graph_pools.json"))
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--seconds", type=float, default=100.0, help="end after this time")
    arguments = parser.parse_args()
    until_s = time.monotonic() + arguments.seconds
    results: dict[str, Any] = {"environment": describe_environment("cuda"), "kinds": {}}
    with tempfile.TemporaryDirectory() as directory:
        for number, kind in enumerate(arguments.kinds):
            place = Path(directory) / f"{number}.ledger"
            figures: dict[str, Any] = {"program": record(kind, place, until_s - time.monotonic())}
            if "failed" not in figures["program"]:
                figures |= compare(load(place).rank(0), figures["program"], is_later=", " in kind)
            results["kinds"][kind] = figures
            shown = ("peak_as_counter", "pools_as_counter", "balance_as_counter", "kernels", "pools", "failed_checks")
            print(kind, json.dumps({name: figures.get(name) for name in shown} if len(figures) > 1 else figures))
            write_results(arguments.out, results)


if __name__ == "__main__":
    main()
