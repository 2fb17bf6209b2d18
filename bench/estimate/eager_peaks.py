"""Compares estimates of the trainings of ``bench/time/compiled.py``, eager or compiled, with peaks on a GPU.

Needs no GPU. The truth is the allocator's counter in the runs without gpuledger. A training whose run or estimate
failed has its error in ``failed``.

Usage: python bench/estimate/eager_peaks.py --out bench/estimate/results/h200/eager_peaks.json
       python bench/estimate/eager_peaks.py --mode compiled --out bench/estimate/results/h200/compiled_peaks.json
       The same, with the version of transformers that was measured and --only gpt2 llama bert, writes
       bench/estimate/results/h200/compiled_peaks_versions.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(BENCH / "lib"))

from environment import describe_environment, write_results

TRUTH = BENCH / "time" / "results" / "h200" / "compiled.json"
PROGRAM = BENCH / "lib" / "compiled_one.py"
CHANGING = ("activation", "activation_gradient", "temporary")
"""Categories of which a compiled program can keep more or less, as in ``gpuledger.simulate.estimate.fit``."""


def estimate(name: str, mode: str, limit_s: float) -> dict[str, Any]:
    """Return the document of ``gpuledger estimate`` of one training.

    Raises:
        RuntimeError: There was no estimate.
    """
    with tempfile.TemporaryDirectory() as directory:
        command = [
            *(sys.executable, "-m", "gpuledger", "estimate", "--gpu", "h200", "--quiet", "--json"),
            *("--out", str(Path(directory) / "one.ledger"), str(PROGRAM), name, "--mode", mode),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-500:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Estimate every training with a measured peak, and write the result after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--mode", choices=("eager", "compiled"), default="eager")
    parser.add_argument("--truth", type=Path, default=TRUTH)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these trainings; by default, all")
    parser.add_argument("--limit-s", type=float, default=900.0, help="for one training")
    given = parser.parse_args()
    truth = json.loads(given.truth.read_text(encoding="utf-8"))
    results: dict[str, Any] = {
        "estimated_on": describe_environment("cpu"),
        "measured_on": truth["environment"],
        "trainings": {},
        "failed": {},
    }
    for name, one in truth["models"].items():
        if not name.endswith(f" {given.mode}"):
            continue
        name = name.partition(" ")[0]
        if given.only and name not in given.only:
            continue
        if "peaks_bytes" not in one["bare"]:
            results["failed"][name] = "the run on the GPU did not end"
            continue
        try:
            found = estimate(name, given.mode, given.limit_s)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            results["failed"][name] = str(error)
        else:
            measured_bytes, estimated_bytes = one["bare"]["peaks_bytes"][-1], found["peak_allocated_bytes"]
            results["trainings"][name] = {
                "estimated_bytes": estimated_bytes,
                "changing_bytes": sum(found["by_category"].get(category, 0) for category in CHANGING),
                "measured_bytes": measured_bytes,
                "error_frac": estimated_bytes / measured_bytes - 1,
            }
        print(name, results["trainings"].get(name) or results["failed"].get(name), flush=True)
        write_results(given.out, results)


if __name__ == "__main__":
    main()
