"""Measures what recording adds to the total time of a script of 20 steps.

Each run is a process of its own, timed from its start to its exit, imports included, as a user waits for it. Bare and
recorded runs take turns, and the order turns with every round. The figure of a model is the median of the rounds'
differences. ``steps_s`` has the times of the single steps of both, ``before_steps_s`` and ``after_steps_s`` the time
from the start of the process to them and from them to its exit, and ``pauses`` those that the recorder wrote down.

Python keeps the compiled form of every module, as it does of an installed package, and a round that is not counted
makes it: without that, Python would compile some 400 modules of gpuledger in every recorded run.

On a CPU whose cores are shared, give ``--threads 1``: threads that wait for each other made bare steps of 1 ms last
160 ms, at random.

Usage: python bench/time/short_run.py --out bench/time/results/h200/short_run.json [--rounds 3]
           [--models gpt2,resnet50,lstm,neumf] [--steps 20] [--small]
       python bench/time/short_run.py --out bench/time/results/cpu/short_run.json --device cpu --models neumf --small
           --threads 1 --rounds 9
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
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import ROOT, describe_environment, write_results

import gpuledger

FOUR = ("gpt2", "resnet50", "lstm", "neumf")
SCRIPT = ROOT / "bench" / "lib" / "train_one.py"
MOST_MORE_S = 1.5
MOST_MORE_SHARE = 0.05
"""A recorded run may take so many seconds, and this share of the bare run, more."""


def run(given: argparse.Namespace, model: str, *, is_recorded: bool) -> dict[str, Any]:
    """Return how long one process took, its steps' times, and what the recorder wrote down."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run.ledger"
        script = [str(SCRIPT), model, "--steps", str(given.steps), "--device", given.device, "--times"]
        script += ["--small"] if given.small else []
        before = ["-m", "gpuledger", "run", "-q", "--out", str(out)] if is_recorded else []
        started_unix_s = time.time()
        started_s = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, *before, *script],
            capture_output=True,
            text=True,
            check=False,
            env=_environment(given.threads),
        )
        took_s = time.perf_counter() - started_s
        left_unix_s = time.time()
        if ended.returncode:
            return {"error": ended.stderr[-2000:]}
        told = json.loads(ended.stdout.strip().splitlines()[-1])
        began_unix_s, ended_unix_s = told["training_unix_s"]
        found = {"took_s": took_s, "steps_s": told["step_times_s"]}
        found |= {"before_steps_s": began_unix_s - started_unix_s, "after_steps_s": left_unix_s - ended_unix_s}
        return found | (_what_was_recorded(out) if is_recorded else {})


def _environment(threads: int | None) -> dict[str, str]:
    """Return this process's environment, in which Python keeps compiled modules, with a count of PyTorch's threads."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | ({"OMP_NUM_THREADS": str(threads)} if threads else {})


def _what_was_recorded(out: Path) -> dict[str, Any]:
    manifest = gpuledger.load(out).rank().manifest
    return {
        "pauses": [{"reason": pause.reason, "duration_s": pause.duration_ns / 1e9} for pause in manifest.pauses],
        "time_steps": manifest.time_steps,
        "notes": list(manifest.notes),
    }


def measure(given: argparse.Namespace, model: str, row: dict[str, Any], turn: int) -> None:
    """Add one round to a model's row."""
    pair = {}
    for is_recorded in (False, True) if turn % 2 == 0 else (True, False):
        pair[is_recorded] = run(given, model, is_recorded=is_recorded)
    errors = [one["error"] for one in pair.values() if "error" in one]
    row["errors"] += errors
    if errors:
        return
    row["rounds"].append({"bare": pair[False], "recorded": pair[True]})
    bare_s = statistics.median(one["bare"]["took_s"] for one in row["rounds"])
    more_s = statistics.median(one["recorded"]["took_s"] - one["bare"]["took_s"] for one in row["rounds"])
    row["bare_s"], row["more_s"] = bare_s, more_s
    row["is_within_target"] = more_s <= MOST_MORE_S + MOST_MORE_SHARE * bare_s
    print(f"{model}: bare {bare_s:.2f} s, recorded {more_s:+.2f} s", flush=True)


def main() -> None:
    """Measure the models and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=",".join(FOUR))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.device_count() else "cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    environment = describe_environment(given.device)
    rows: dict[str, dict[str, Any]] = {}
    run(given, given.models.split(",")[0], is_recorded=True)
    for turn in range(given.rounds):
        for model in given.models.split(","):
            measure(given, model, rows.setdefault(model, {"rounds": [], "errors": []}), turn)
            about = {"steps": given.steps, "small": given.small, "most_more_s": MOST_MORE_S}
            about |= {"most_more_share": MOST_MORE_SHARE, "threads": given.threads}
            write_results(given.out, {"environment": environment, **about, "models": rows})


if __name__ == "__main__":
    main()
