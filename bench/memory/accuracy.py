"""Compares recordings with the allocator, with the GPU, and with the program without a recording.

Each model is trained as a user would: bare, several times, each in a process of its own, then under
``gpuledger run``. Nothing is changed in the program. The figures come from the run that ``gpuledger`` wrote and from
what the program printed.

Usage: python bench/memory/accuracy.py --out bench/memory/results/h200/accuracy.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import describe_environment
from models import EIGHT

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.overview.balance import build_balance
from gpuledger.model.run import Rank
from gpuledger.services.runs import load


def train(name: str, steps: int, before: tuple[str, ...] = ()) -> dict[str, Any]:
    """Train one model in a process of its own; return what it printed."""
    command = [sys.executable, *before, str(LIB / "train_one.py"), name, "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


def checks_of(rank: Rank) -> dict[str, Any]:
    """Return how many comparisons with the allocator were made, and those that did not hold."""
    checks = rank.manifest.checks
    return {"made": len(checks), "failed": [check.to_json() for check in checks if not check.ok]}


def outside_modules(rank: Rank) -> dict[str, int]:
    """Return the bytes at the peak that stand on no module, by phase."""
    accounts = break_down(rank, find_peak(rank), by=("module", "phase")).accounts
    found: dict[str, int] = {}
    for account in accounts:
        if not account.module and account.category != "rounding":
            found[account.phase] = found.get(account.phase, 0) + account.bytes
    return found


def other_frac(rank: Rank) -> float:
    """Return the share of the peak in category ``other``."""
    breakdown = break_down(rank, find_peak(rank), by=("category",))
    return sum(a.bytes for a in breakdown.accounts if a.category == "other") / breakdown.allocated_bytes


def measure(name: str, directory: Path, steps: int, bare_runs: int) -> dict[str, Any]:
    """Return all figures of one model."""
    bare = [train(name, steps) for _ in range(bare_runs)]
    run_directory = directory / f"{name}.ledger"
    recorded = train(name, steps, ("-m", "gpuledger", "run", "-q", "--out", str(run_directory)))
    rank = load(run_directory).rank(0)
    balance = build_balance(rank)
    process_bytes, unaccounted_bytes = balance.process_bytes, balance.unaccounted_bytes
    return {
        "checks": checks_of(rank),
        "bare_peak_allocated_bytes": [printed["peak_allocated_bytes"] for printed in bare],
        "bare_peak_reserved_bytes": [printed["peak_reserved_bytes"] for printed in bare],
        "recorded_peak_allocated_bytes": recorded["peak_allocated_bytes"],
        "recorded_peak_reserved_bytes": recorded["peak_reserved_bytes"],
        "other_frac": other_frac(rank),
        "outside_modules_bytes": outside_modules(rank),
        "balance": {line.name: line.bytes for line in balance.lines if line.level < 2},
        "process_bytes": process_bytes,
        "unaccounted_bytes": unaccounted_bytes,
        "unaccounted_frac": None
        if not process_bytes or unaccounted_bytes is None
        else unaccounted_bytes / process_bytes,
        "pauses_ns": sum(pause.duration_ns for pause in rank.manifest.pauses),
        "recorder_bytes": rank.manifest.recorder_bytes,
        "notes": rank.manifest.notes,
    }


def main() -> None:
    """Measure every model asked for; write the figures and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=EIGHT)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--bare-runs", type=int, default=2)
    parser.add_argument("--add", action="store_true", help="keep the other models of an --out that exists")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"environment": describe_environment("cuda"), "models": {}}
    if arguments.add:
        results["models"] = json.loads(arguments.out.read_text())["models"]
    with tempfile.TemporaryDirectory() as directory:
        for name in arguments.models:
            figures = results["models"][name] = measure(name, Path(directory), arguments.steps, arguments.bare_runs)
            same = figures["recorded_peak_allocated_bytes"] in figures["bare_peak_allocated_bytes"]
            print(
                f"{name:10s} checks {figures['checks']['made']} failed {len(figures['checks']['failed'])}  "
                f"peak as bare {same}  other {figures['other_frac']:.4%}  remainder {figures['unaccounted_bytes']}",
                flush=True,
            )
            arguments.out.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
