"""Estimates a dozen trainings with cuDNN's layers before they run, and compares when they ran on a GPU.

``--set`` chooses the dozen of ``bench/lib/blind_train.py``.

``--estimate`` needs no GPU and writes each first estimate with its time; commit its result before ``--truth`` runs.
``--truth`` runs the trainings on the GPU, each in a process of its own, and adds peaks and errors. ``--again`` adds the
errors of estimates with today's rules, which were made with some of these trainings in sight.

Usage:
    python bench/estimate/blind.py --estimate --out bench/estimate/results/h200/blind.json
    python bench/estimate/blind.py --truth --out bench/estimate/results/h200/blind.json
    python bench/estimate/blind.py --set nets --estimate --out bench/estimate/results/h200/blind_nets.json
    python bench/estimate/blind.py --again --out bench/estimate/results/h200/blind.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from blind_train import SETS, STEPS
from environment import describe_environment, write_results

SCRIPT = str(LIB / "blind_train.py")
FIGURES = ("allocated_bytes", "reserved_bytes")


def estimate_one(name: str, gpu: str) -> dict[str, Any]:
    """Return the estimate of one training, with its time."""
    with tempfile.TemporaryDirectory() as directory:
        words = ["-m", "gpuledger", "estimate", "-q", "--json", "--gpu", gpu, "--steps", str(STEPS)]
        command = [sys.executable, *words, "--out", str(Path(directory) / "run"), SCRIPT, name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-2:], "estimated": now}
    found = json.loads(done.stdout)
    peaks = {figure: found[f"peak_{figure}"] for figure in FIGURES}
    share = found["upper_bytes"] / found["peak_process_bytes"]
    return {**peaks, "upper_over_estimate": round(share, 4), "estimated": now}


def run_one(name: str) -> dict[str, Any]:
    """Return the peaks of one training on this machine's GPU."""
    done = subprocess.run([sys.executable, SCRIPT, name], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    """Estimate or run the trainings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--estimate", action="store_true")
    parser.add_argument("--truth", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--set", choices=SETS, default="layers")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    results = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    if options.estimate:
        if results:
            parser.error(f"{options.out} exists: a first estimate is not replaced")
        results["estimated_on"] = describe_environment("cpu")
        results["trainings"] = {name: {"estimate": estimate_one(name, options.gpu)} for name in SETS[options.set]}
    if options.truth:
        results["truth_on"] = describe_environment("cuda")
        for name, one in results["trainings"].items():
            truth = one["truth"] = run_one(name)
            if "failed" not in truth and "failed" not in one["estimate"]:
                one["error"] = {figure: round(one["estimate"][figure] / truth[figure] - 1, 5) for figure in FIGURES}
            write_results(options.out, results)
    if options.again:
        results["again_on"] = describe_environment("cpu")
        for name, one in results["trainings"].items():
            made, truth = estimate_one(name, options.gpu), one["truth"]
            one["again"] = made if "failed" in made else {f: round(made[f] / truth[f] - 1, 5) for f in FIGURES}
    write_results(options.out, results)
    for name, one in results["trainings"].items():
        print(name, one)


if __name__ == "__main__":
    main()
