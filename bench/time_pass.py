"""Measures the time pass: how much kernel time finds its module, how well it closes, and what it leaves behind.

Each model is recorded twice as a user would (`gpuledger run`), training and inference, with steps before and after the
passes timed by the script itself. Needs a CUDA card; with --small on a CPU it shows that the script works, no more.

Usage: python bench/time_pass.py --out bench/results/h200/time_pass.json [--models gpt2,resnet50] [--keep DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from environment import describe_environment, write_results
from models import MODELS

from gpuledger.analyze.times import break_down_time
from gpuledger.api import load

HERE = Path(__file__).parent


SCRIPTS = {"training": ("train_one.py", "--steps", "20", "--times"), "inference": ("infer_one.py", "--calls", "60")}


def record(model: str, mode: str, seconds: float, extra: list[str], directory: Path) -> dict[str, Any]:
    """Return what one recorded program says of its time."""
    run = directory / f"{model}.ledger"
    command = [
        sys.executable,
        "-m",
        "gpuledger",
        "run",
        "-q",
        "--force",
        "--no-stacks",
        "--passes",
        "memory,time",
        "--out",
        str(run),
    ]
    program, *words = SCRIPTS[mode]
    script = [str(HERE / program), model, *words, "--seconds", str(seconds), *extra]
    started_s = time.monotonic()
    done = subprocess.run([*command, *script], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-3:]}
    times_s: list[float] = json.loads(done.stdout.splitlines()[-1])["step_times_s"]
    rank = load(run).rank(0)
    found = break_down_time(rank)
    if found is None:
        return {"failed": rank.manifest["notes"]}
    first, last = rank.manifest["time_steps"]
    before, during, after = times_s[5 : first - 1], times_s[first - 1 : last], times_s[last:]
    bare_s = statistics.median(before)
    return {
        "bare_step_ms": bare_s * 1e3,
        "kernel_ms": found.work_ns / 1e6,
        "busy_ms": found.busy_ns / 1e6,
        "busy_against_bare": found.busy_ns / 1e9 / bare_s,
        "unplaced_share": found.unplaced_ns / found.work_ns,
        "without_module_share": sum(a.time_ns for a in found.accounts if not a.module and a.phase != "optimizer")
        / found.work_ns,
        "timed_step_against_bare": during[-1] / bare_s,
        "after_against_bare": statistics.median(after) / bare_s if after else None,
        "steps_before": len(before),
        "steps_after": len(after),
        "pauses_ms": [p["duration_ns"] / 1e6 for p in rank.manifest["pauses"] if p["reason"] == "time"],
        "wall_s": round(time.monotonic() - started_s, 1),
    }


def record_twice(model: str, mode: str, seconds: float, extra: list[str], directory: Path) -> dict[str, Any]:
    """Return two runs of one program, and how far their kernels' times are apart."""
    runs = [record(model, mode, seconds, extra, directory) for _ in range(2)]
    kernel_ms = [run["kernel_ms"] for run in runs if "kernel_ms" in run]
    apart = abs(kernel_ms[0] / kernel_ms[1] - 1) if len(kernel_ms) == 2 else None
    return {"runs": runs, "kernel_repeats_within": apart}


def main() -> None:
    """Record every model twice and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--limit-s", type=float, default=300)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each program goes on")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--keep", type=Path, help="keep the first run's journal of each model there")
    arguments = parser.parse_args()
    deadline_s = time.monotonic() + arguments.limit_s
    size = ["--device", arguments.device, *(["--small"] if arguments.small else [])]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for model in arguments.models.split(","):
            if time.monotonic() > deadline_s:
                break
            results[model] = {
                mode: record_twice(model, mode, arguments.seconds, size, Path(scratch)) for mode in SCRIPTS
            }
            if arguments.keep:
                shutil.copytree(Path(scratch) / f"{model}.ledger", arguments.keep / f"{model}.ledger")
            print(model, json.dumps(results[model]), flush=True)
    write_results(arguments.out, {"environment": describe_environment(arguments.device), "models": results})


if __name__ == "__main__":
    main()
