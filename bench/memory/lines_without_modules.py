"""Measures how much of the peak and of the kernel time of programs without modules has no source line.

Each program is recorded with its default measurements, in a process of its own.

Usage: python bench/memory/lines_without_modules.py --out bench/memory/results/h200/lines_without_modules.json
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
from numeric_programs import HEAD, PROGRAMS

from gpuledger.analyze.view.view import build_view
from gpuledger.services.runs import load

MOST_WITHOUT_LINE = 0.05
FILE = "program.py:"


def measure(name: str, directory: Path) -> dict[str, Any]:
    """Record one program; return its peak, its kernel time, and the share of both without a line of the program.

    The bytes without a line include rounding, the allocator's granularity. ``elsewhere_bytes`` lists them by label.
    """
    script, run = directory / "program.py", directory / f"{name}.ledger"
    script.write_text(HEAD + PROGRAMS[name], encoding="utf-8")
    command = [sys.executable, "-m", "gpuledger", "run", "-q", "--out", str(run), str(script)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=directory)
    device = build_view(load(run)).highest
    own = [line for line in device.line_amounts if FILE in line.label]
    elsewhere = {line.label: line.bytes for line in device.line_amounts if FILE not in line.label and line.bytes}
    peak_bytes, work_ns = device.breakdown.allocated_bytes, device.times.work_ns if device.times else 0.0
    manifest = device.rank.manifest
    return {
        "peak_allocated_bytes": peak_bytes,
        "bytes_without_line_frac": 1 - sum(line.bytes or 0 for line in own) / peak_bytes,
        "elsewhere_bytes": elsewhere,
        "work_ns": work_ns,
        "time_without_line_frac": 1 - sum(line.time_ns or 0 for line in own) / work_ns if work_ns else None,
        "timed_operators": manifest.timed_program.operators if manifest.timed_program else None,
        "notes": [*manifest.notes, *manifest.left_out],
    }


def main() -> None:
    """Measure every program; write the figures and print a line for each. Exit status 1 if one is above 5 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--programs", nargs="*", default=tuple(PROGRAMS))
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results: dict[str, Any] = {"environment": describe_environment(device), "programs": {}}
    with tempfile.TemporaryDirectory() as directory:
        for name in arguments.programs:
            found = results["programs"][name] = measure(name, Path(directory))
            write_results(arguments.out, results)
            shares = [found["bytes_without_line_frac"], found["time_without_line_frac"]]
            shown = ["–" if share is None else f"{share:.1%}" for share in shares]
            print(f"{name:20s} bytes without a line {shown[0]:>6s}, time {shown[1]:>6s}", *found["notes"], flush=True)
    worst = [
        1.0 if share is None else share
        for one in results["programs"].values()
        for share in (one["bytes_without_line_frac"], one["time_without_line_frac"])
    ]
    sys.exit(int(max(worst) > MOST_WITHOUT_LINE))


if __name__ == "__main__":
    main()
