"""Measures how right an estimate is: a grid of trainings on the card, and the same lines estimated without one.

``--truth DIR`` trains every combination under ``gpuledger run``, several at a time, each in a process of its own
(the counters are the process's own), and keeps what it printed, its peak by category and its journal. ``--estimate``
estimates the same script on this machine, needs no card, and writes truth, estimate and errors side by side.

Usage:
    python bench/estimate_grid.py --truth OUT_DIRECTORY --limit-s 170
    python bench/estimate_grid.py --estimate --out bench/results/h200/estimate.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from environment import describe_environment, write_results
from grid_train import COMBINATIONS, Combination
from record import join_parts

HERE = Path(__file__).parent
TRUTH = HERE / "results" / "h200" / "estimate_truth.json"


def train(combination: Combination, directory: Path, keep: Path, timeout_s: float) -> dict[str, Any]:
    """Return what one training printed and held at its peak; its journal is kept in ``keep``."""
    run = directory / f"{combination.name}.ledger"
    command = [sys.executable, "-m", "gpuledger", "run", "-q", "--no-stacks", "--steps", "1:4", "--out", str(run)]
    script = [str(HERE / "grid_train.py"), combination.name]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}
    if combination.allocator:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = combination.allocator
    started_s = time.monotonic()
    done = subprocess.run(
        [*command, *script], capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:], "wall_s": round(time.monotonic() - started_s, 1)}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**found, **_peak(run, keep / f"{combination.name}.npz"), "wall_s": round(time.monotonic() - started_s, 1)}


def _peak(run: Path, journal: Path) -> dict[str, Any]:
    from gpuledger.analyze.breakdown import break_down
    from gpuledger.analyze.instant import find_peak
    from gpuledger.api import load

    rank = load(run).rank(0)
    join_parts(run / "rank-0" / "journal", journal)
    books = break_down(rank, find_peak(rank), by=("category",))
    return {
        "recorded_peak_bytes": books.allocated_bytes,
        "by_category": {account.category: account.bytes for account in books.accounts},
        "failed_checks": [check for check in rank.manifest["checks"] if not check["ok"]],
        "libraries": rank.manifest.get("libraries"),
    }


def _profiles() -> Any:
    from gpuledger.collect.calibrate import cache_path, read_profiles

    return read_profiles(cache_path())[0]


def tell_truth(out: Path, chosen: list[Combination], workers: int, limit_s: float) -> None:
    """Train every combination and write ``truth.json`` after each; the first one alone, as it calibrates the card."""
    out.mkdir(parents=True, exist_ok=True)
    deadline_s = time.monotonic() + limit_s
    results: dict[str, Any] = {"environment": describe_environment("cuda"), "combinations": {}}

    def one(combination: Combination) -> None:
        left_s = deadline_s - time.monotonic()
        if left_s < 5:
            found: dict[str, Any] = {"failed": ["no time left"]}
        else:
            try:
                found = train(combination, Path(directory), out, left_s)
            except subprocess.TimeoutExpired:
                found = {"failed": ["no time left"]}
            except Exception as error:  # one combination must not cost the others their figures
                found = {"failed": [f"{type(error).__name__}: {error}"]}
        results["combinations"][combination.name] = found
        results["profiles"] = _profiles()
        write_results(out / "truth.json", results)
        print(combination.name, found.get("peak_allocated_bytes", found), found.get("wall_s"), flush=True)

    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(workers) as pool:
        one(chosen[0])
        for _ in pool.map(one, chosen[1:]):
            pass


def main() -> None:
    """Tell the truth or estimate it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", type=Path, metavar="DIR", help="train on the card of this machine")
    parser.add_argument("--estimate", action="store_true", help="estimate on this machine")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "h200" / "estimate.json")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="combinations whose name holds this")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--limit-s", type=float, default=170.0)
    arguments = parser.parse_args()
    chosen = [one for one in COMBINATIONS if not arguments.only or any(word in one.name for word in arguments.only)]
    if arguments.truth:
        tell_truth(arguments.truth, chosen, arguments.workers, arguments.limit_s)


if __name__ == "__main__":
    main()
