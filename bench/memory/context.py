"""Measures how much of the GPU's used memory the balance leaves unaccounted: eight models, a GAN, ranks on two GPUs.

Usage: python bench/memory/context.py --out bench/memory/results/h200/context.json
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

import torch
from environment import describe_environment, write_results
from models import EIGHT

from gpuledger.analyze.overview.balance import build_balance
from gpuledger.analyze.overview.process_bytes import has_context_reading
from gpuledger.model.run import Rank
from gpuledger.services.runs import load

MIB = 1 << 20
RECORD = (sys.executable, "-m", "gpuledger", "run", "-q", "--passes", "memory")
STEPS = ("--steps", "5")
TORCHRUN = ("--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
TWO_RANKS = {
    "two ranks": (*TORCHRUN, str(LIB / "train_ddp.py"), *STEPS),
    "two ranks, device given": (*TORCHRUN, str(LIB / "train_ddp.py"), *STEPS, "--bind"),
}


def judge(rank: Rank) -> dict[str, Any]:
    """Return the lines of the balance at the peak, and whether unaccounted memory is within its limits."""
    balance = build_balance(rank)
    unaccounted, process = balance.unaccounted_bytes, balance.process_bytes
    is_known = unaccounted is not None and process is not None
    return {
        "rank": rank.number,
        "lines": {line.name: {"bytes": line.bytes, "note": line.note} for line in balance.lines if line.level < 2},
        "process_bytes": process,
        "unaccounted_bytes": unaccounted,
        "limits_bytes": [-2 * MIB, max(20 * MIB, round((process or 0) * 0.01))],
        "within": is_known and -2 * MIB <= unaccounted <= max(20 * MIB, process * 0.01),
        "context_read_in_process": has_context_reading(rank),
        "checks_failed": [check.to_json() for check in rank.manifest.checks if not check.ok],
        "notes": [*balance.notes, *rank.manifest.notes],
    }


def measure(directory: Path, command: tuple[str, ...]) -> list[dict[str, Any]]:
    """Record a command; return the balance of each of its ranks."""
    run_directory = directory / f"{len(list(directory.iterdir()))}.ledger"
    subprocess.run([*RECORD, "--out", str(run_directory), *command], check=True, stdout=subprocess.DEVNULL)
    return [judge(rank) for rank in load(run_directory).ranks]


def main() -> None:
    """Measure every model; write the figures and print a line for each rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=(*EIGHT, "gan"))
    arguments = parser.parse_args()
    commands = {name: (str(LIB / "train_one.py"), name, *STEPS) for name in arguments.models}
    if torch.cuda.device_count() > 1:
        commands |= TWO_RANKS
    results: dict[str, Any] = {"environment": describe_environment("cuda"), "models": {}}
    with tempfile.TemporaryDirectory() as directory:
        for name, command in commands.items():
            ranks = results["models"][name] = measure(Path(directory), command)
            write_results(arguments.out, results)
            for found in ranks:
                outside = {line: found["lines"].get(line, {}).get("bytes") for line in ("context", "library", "nccl")}
                sizes = {line: size / MIB if size is not None else None for line, size in outside.items()}
                unaccounted = (found["unaccounted_bytes"] or 0) / MIB
                print(f"{name:24s} {unaccounted:8.1f} MiB unaccounted, within {found['within']}  {sizes}", flush=True)


if __name__ == "__main__":
    main()
