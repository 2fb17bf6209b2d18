"""Compares estimates of sharded training with the peaks that two or four H200s measured. Needs no GPU.

The trainings and their peaks are those of ``bench/memory/sharded.py``. Every rank is estimated. A way without peaks of
its own is compared with the peak of the run without recording. A way that fails has its error in ``failed``.

Usage: python bench/estimate/sharded_estimates.py --truth bench/memory/results/h200/sharded_2.json \
           --out bench/estimate/results/h200/sharded_estimates_2.json
       python bench/estimate/sharded_estimates.py --truth bench/memory/results/h200/sharded_4.json \
           --out bench/estimate/results/h200/sharded_estimates_4.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(BENCH / "lib"))

from environment import describe_environment, write_results

TRUTH = BENCH / "memory" / "results" / "h200" / "sharded_2.json"
PROGRAM = BENCH / "lib" / "sharded_followed.py"
COUNTERS = ("peak_allocated_bytes", "peak_reserved_bytes")


def estimate(way: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return the document of ``gpuledger estimate`` of one way."""
    with tempfile.TemporaryDirectory() as directory:
        command = [
            *(sys.executable, "-m", "gpuledger", "estimate", "--gpu", "h200", "--quiet", "--json"),
            *("--world-size", str(given.ranks), "--ranks", "all", "--out", str(Path(directory) / "one.ledger")),
            *(str(PROGRAM), way, given.size),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=given.limit_s, check=False, env=os.environ.copy()
        )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-500:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def truths(measured: dict[str, Any], way: str) -> list[dict[str, int]]:
    """Return what torch counted on each rank, and the process's other bytes where they were recorded.

    These are context, libraries and NCCL: the process's bytes at the allocated peak without the allocator's.
    """
    printed = measured.get(way, {}).get("printed", [])
    ranks = measured.get(way, {}).get("ranks", {})
    if printed:
        return [
            {**{name: one[name] for name in COUNTERS}, "outside_bytes": outside_bytes(ranks[str(one["rank"])])}
            for one in printed
        ]
    bare = measured.get("bare", {}).get("torch_peak_of_program_bytes", {})
    return [{"peak_allocated_bytes": size} for size in bare.get(way, [])]


def outside_bytes(rank: dict[str, Any]) -> int:
    """Return the process's bytes outside of the allocator, at the peak of allocated bytes."""
    balance = rank["balance"]
    reserved_bytes = sum(balance[name] for name in ("allocated", "free_segments", "fragmented", "awaiting_free"))
    return int(rank["process_bytes"]) - int(reserved_bytes)


def compare(found: dict[str, Any], truth: list[dict[str, int]]) -> list[dict[str, Any]]:
    """Return each rank's estimate, the measurement, and the error relative to it."""
    rows = []
    for one, real in zip(found["ranks"], truth, strict=True):
        outside = one["peak_process_bytes"] - one["peak_reserved_bytes"]
        estimated = {**{name: one[name] for name in COUNTERS}, "outside_bytes": outside}
        errors = {name: estimated[name] / real[name] - 1 for name in real}
        rows.append({"rank": one["rank"], "estimated": estimated, "measured": real, "error_frac": errors})
    return rows


def main() -> None:
    """Estimate all ways and write the result after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--truth", type=Path, default=TRUTH)
    parser.add_argument("--ways", default="")
    parser.add_argument("--limit-s", type=float, default=900.0, help="for one way")
    given = parser.parse_args()
    truth = json.loads(given.truth.read_text(encoding="utf-8"))
    given.size, given.ranks = truth["size"], truth["ranks"]
    ways = [way for way in (given.ways or truth["ways"]).split(",") if truths(truth["results"], way)]
    machine = {name: truth[name] for name in ("card", "driver", "date", "commit")} | {
        "torch": truth["versions"]["torch"]
    }
    results = {**describe_environment("cpu"), "size": given.size, "ranks": given.ranks, "measured_on": machine}
    results |= {"ways": {}, "failed": {}}
    for way in ways:
        try:
            results["ways"][way] = compare(estimate(way, given), truths(truth["results"], way))
        except subprocess.TimeoutExpired:
            results["failed"][way] = f"no answer within {given.limit_s:g} s"
        except RuntimeError as error:
            results["failed"][way] = str(error)
        write_results(given.out, results)


if __name__ == "__main__":
    main()
