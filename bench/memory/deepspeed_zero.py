"""Compares DeepSpeed's ZeRO, stages 1 to 3, without a recording and recorded, on two GPUs of one host.

Of each rank: the allocator's peaks and the losses of both runs, the categories at the recorded peak, the expected bytes
of its shards, and what the balance does not explain. Needs DeepSpeed. Each stage runs once without a recording and
once recorded, each in processes of its own, one after the other. Losses are of bfloat16, and two runs of one program
can differ in them.

With ``--runs DIR``, the runs stay there, and what is there already is read and not measured again.

Usage: python bench/memory/deepspeed_zero.py --out bench/memory/results/h200/deepspeed_zero.json
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import describe_environment, write_results
from sharded_figures import rank_figures

from gpuledger.analyze.ranks.rank_set import build_rank_set
from gpuledger.services.runs import load

STAGES, RANKS, LIMIT_S = (1, 2, 3), 2, 120.0
ENVIRONMENT = "environment.json"
"""What the runs of a directory were measured on."""
FIGURES = ("recorded_peak_allocated_bytes", "categories_bytes", "other_frac", "unaccounted_bytes", "failed_checks")


def train(stage: int, runs: Path) -> None:
    """Train without a recording, then recorded."""
    launch = ["--nproc_per_node", str(RANKS), str(LIB / "deepspeed_train.py"), str(stage)]
    bare = [sys.executable, "-m", "torch.distributed.run", *launch, str(runs / f"bare{stage}")]
    recorded = [sys.executable, "-m", "gpuledger", "run", "--force", "--out", str(runs / f"ds{stage}.ledger"), "--"]
    for command in (bare, [*recorded, "torchrun", *launch, str(runs / f"rec{stage}")]):
        subprocess.run(command, check=True, timeout=LIMIT_S)


def read(stage: int, runs: Path) -> dict[str, Any]:
    """Return the figures of a stage: for each rank, and the expected bytes of each category."""
    run = load(runs / f"ds{stage}.ledger")
    ranks = []
    for number in range(RANKS):
        figures = rank_figures(run.rank(number), {})
        told = {kind: json.loads((runs / f"{kind}{stage}.{number}.json").read_text()) for kind in ("bare", "rec")}
        equal = {name: told["bare"][name] == told["rec"][name] for name in ("allocated", "reserved")}
        losses = [abs(a - b) for a, b in zip(told["bare"]["losses"], told["rec"]["losses"], strict=True)]
        peaks = {kind: {name: one[name] for name in ("allocated", "reserved")} for kind, one in told.items()}
        ranks.append(
            {
                "bare_peak_bytes": peaks["bare"],
                "recorded_run_peak_bytes": peaks["rec"],
                "peaks_are_equal": equal,
                "largest_difference_of_losses": max(losses),
                **{name: figures[name] for name in FIGURES},
            }
        )
    expected = {row.name: row.expected_bytes for row in build_rank_set(run).categories if row.expected_bytes}
    return {"ranks": ranks, "expected_bytes": expected}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        runs = arguments.runs or Path(directory)
        runs.mkdir(parents=True, exist_ok=True)
        stages = {}
        for stage in STAGES:
            if not (runs / f"rec{stage}.{RANKS - 1}.json").exists():
                told = describe_environment("cuda")
                told["versions"]["deepspeed"] = importlib.metadata.version("deepspeed")
                (runs / ENVIRONMENT).write_text(json.dumps(told))
                train(stage, runs)
            stages[stage] = read(stage, runs)
        environment = json.loads((runs / ENVIRONMENT).read_text())
        write_results(arguments.out, {"environment": environment, "n": 1, "stages": stages})


if __name__ == "__main__":
    main()
