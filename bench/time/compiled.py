"""Measures compiled and captured trainings: share of peak bytes and of kernel time without a module, and step times.

Each model and mode runs recorded, then bare, each in a process of its own. The recorded run compiles everything anew
and the bare one takes its code from the cache; with ``--warm``, a third run is recorded with the full cache.

Usage: python bench/time/compiled.py --out bench/time/results/h200/compiled.json --models gpt2 --modes compiled
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

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

import torch
from environment import describe_environment, write_results

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.step.times import break_down_time
from gpuledger.model.run import Rank
from gpuledger.services.runs import load

MODELS = ("gpt2", "resnet50", "vit", "llama", "bert", "moe")
MODES = ("eager", "compiled", "captured")


def train(command: list[str], directory: Path, limit_s: float) -> dict[str, Any]:
    """Run one training with its own compiler cache; return what it printed, or how it failed."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor")}
    environment["TRITON_CACHE_DIR"] = str(directory / "triton")
    environment["XDG_CACHE_HOME"] = str(directory / "caches")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=max(limit_s, 1.0), env=environment
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no end after {limit_s:.0f} s"}
    if done.returncode or not done.stdout.strip():
        return {"failed": done.stderr[-2000:]}
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**printed, "stderr": done.stderr[-1500:]}


def bytes_without_module(rank: Rank) -> dict[str, Any]:
    """Return the bytes of the peak, those on no module, and the largest modules. An optimizer's are in no module."""
    peak = find_peak(rank)
    breakdown = break_down(rank, peak, by=("module", "category", "phase"))
    total = breakdown.allocated_bytes
    outside: dict[str, int] = {}
    on_modules: dict[str, int] = {}
    for one in breakdown.accounts:
        if one.module:
            on_modules[one.module] = on_modules.get(one.module, 0) + one.bytes
        elif one.category != "rounding":
            key = f"{one.category}, {one.phase}"
            outside[key] = outside.get(key, 0) + one.bytes
    largest = dict(sorted(on_modules.items(), key=lambda item: -item[1])[:12])
    return {
        "peak_allocated_bytes": total,
        "peak_step": peak.step,
        "peak_phase": peak.phase,
        "no_module_frac": sum(size for key, size in outside.items() if not key.endswith("optimizer")) / total,
        "no_module_bytes": outside,
        "largest_modules_bytes": largest,
    }


def time_without_module(rank: Rank) -> dict[str, Any]:
    """Return the work of one profiled step, and the part of it on no module, by phase."""
    times = break_down_time(rank)
    if times is None:
        return {"failed": "no timing measurement"}
    outside: dict[str, float] = {}
    on_modules: dict[str, float] = {}
    for one in times.accounts:
        if one.module:
            on_modules[one.module] = on_modules.get(one.module, 0.0) + one.time_ns
        else:
            outside[one.phase] = outside.get(one.phase, 0.0) + one.time_ns
    placed = sum(ns for phase, ns in outside.items() if phase not in ("optimizer", "between"))
    return {
        "work_ns": times.work_ns,
        "no_module_frac": placed / times.work_ns if times.work_ns else None,
        "no_module_ns": outside,
        "unplaced_ns": times.unplaced_ns,
        "largest_modules_ns": dict(sorted(on_modules.items(), key=lambda item: -item[1])[:12]),
    }


def step_ratios(rank: Rank, recorded: dict[str, Any], bare: dict[str, Any]) -> dict[str, Any]:
    """Return recorded steps' and later steps' times against the bare run's median."""
    window = rank.manifest.window
    bare_s = statistics.median(bare["step_times_s"][len(bare["step_times_s"]) // 2 :])
    times = recorded["step_times_s"]
    last = window.last_step if window is not None and window.last_step else 0
    inside = times[2:last] if last > 2 else times[1:last]
    later = times[len(times) * 3 // 4 :]
    return {
        "bare_step_s": bare_s,
        "inside_ratio": statistics.median(inside) / bare_s if inside else None,
        "outside_ratio": statistics.median(later) / bare_s,
        "window": [window.first_step, window.last_step] if window is not None else None,
    }


def measure(name: str, mode: str, directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return all figures of one model in one mode."""
    script = [str(LIB / "compiled_one.py"), name, "--mode", mode, "--steps", str(arguments.steps)]
    script += ["--small"] if arguments.small else []
    found: dict[str, Any] = {}
    for run in ("recorded", *(("warm",) if arguments.warm else ())):
        place = directory / f"{run}.ledger"
        recorder = ["-m", "gpuledger", "run", "-q", "--out", str(place)]
        recorded = train([sys.executable, *recorder, *script], directory, arguments.until_s - time.monotonic())
        found[run] = {"program": recorded}
        if "failed" not in recorded and place.is_dir():
            rank = load(place).rank(0)
            found[run] |= {
                "memory": bytes_without_module(rank),
                "time": time_without_module(rank),
                "notes": rank.manifest.notes,
                "unread": rank.manifest.compiled_unread,
                "fusions": len(rank.manifest.fusions),
                "some_fusions": [one.to_json() for one in rank.manifest.fusions[:4]],
                "failed_checks": [check.to_json() for check in rank.manifest.checks if not check.ok],
            }
    bare = train([sys.executable, *script], directory, arguments.until_s - time.monotonic())
    found["bare"] = bare
    if "failed" not in bare and "memory" in found["recorded"]:
        found["steps"] = step_ratios(load(directory / "recorded.ledger").rank(0), found["recorded"]["program"], bare)
        found["peak_as_bare"] = found["recorded"]["program"]["peaks_bytes"][-1] == bare["peaks_bytes"][-1]
        peak_bytes = found["recorded"]["program"]["peaks_bytes"][-1]
        found["peak_as_counter"] = found["recorded"]["memory"]["peak_allocated_bytes"] == peak_bytes
    return found


def main() -> None:
    """Measure every model and mode asked for; write the figures and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bench/time/results/h200/compiled.json"))
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--modes", nargs="*", default=MODES)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--warm", action="store_true", help="record once more, with the code in the cache")
    parser.add_argument("--seconds", type=float, default=290.0, help="begin no model after this time")
    parser.add_argument("--keep", type=Path, help="keep the recorded runs here")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arguments.until_s = time.monotonic() + arguments.seconds
    results: dict[str, Any] = {"environment": describe_environment(device), "small": arguments.small, "models": {}}
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.models:
            for mode in arguments.modes:
                if time.monotonic() > arguments.until_s - 5:
                    continue
                directory = (arguments.keep or Path(temporary)) / f"{name}-{mode}"
                directory.mkdir(parents=True, exist_ok=True)
                figures = results["models"][f"{name} {mode}"] = measure(name, mode, directory, arguments)
                print(line_of(name, mode, figures), flush=True)
                write_results(arguments.out, results)


def line_of(name: str, mode: str, figures: dict[str, Any]) -> str:
    """Return one line for people."""
    recorded = figures["recorded"]
    if "memory" not in recorded:
        return f"{name:9s} {mode:9s} failed: {recorded['program'].get('failed', 'nothing was recorded')[-300:]}"
    steps = figures.get("steps") or {}
    return (
        f"{name:9s} {mode:9s} peak without module {recorded['memory']['no_module_frac']:.2%}, "
        f"time without module {recorded['time'].get('no_module_frac')}, "
        f"peak as counter {figures.get('peak_as_counter')}, "
        f"inside x{steps.get('inside_ratio')}, outside x{steps.get('outside_ratio')}"
    )


if __name__ == "__main__":
    main()
