"""Measures compiled and captured trainings: share of peak bytes and of kernel time without a module, and step times.

Each model and mode runs recorded, then bare, each in a process of its own. Before, every model is compiled once in a
recorded run of two steps, several models at a time, so that the measured runs take their code from the cache. With
``--prepare 0``, the recorded run compiles everything anew, and with ``--warm``, a further run is recorded with the full
cache. A failure of one run is written to the results, and the others continue. If a model was measured eager and in
another mode, the differences of the two peaks are written by category and by module.

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
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIB = ROOT / "bench" / "lib"
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
RECORDED, WARM = 9, 4
"""Number of recorded steps, and of the first steps that compile or capture, whose times are not compared."""

Figures = dict[str, Any]


def train(command: list[str], directory: Path, limit_s: float) -> dict[str, Any]:
    """Run one training with the compiler caches of its model; return what it printed, or how it failed."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor")}
    environment["TRITON_CACHE_DIR"] = str(directory / "triton")
    environment["XDG_CACHE_HOME"] = str(directory / "caches")
    if limit_s <= 0:
        return {"failed": "no time was left"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s, env=environment)
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
    by_category: dict[str, int] = {}
    for one in breakdown.accounts:
        by_category[one.category] = by_category.get(one.category, 0) + one.bytes
        if one.module:
            on_modules[one.module] = on_modules.get(one.module, 0) + one.bytes
        elif one.category != "rounding":
            key = f"{one.category}, {one.phase}"
            outside[key] = outside.get(key, 0) + one.bytes
    return {
        "peak_allocated_bytes": total,
        "peak_step": peak.step,
        "peak_phase": peak.phase,
        "no_module_frac": sum(size for key, size in outside.items() if not key.endswith("optimizer")) / total,
        "no_module_bytes": outside,
        "by_category_bytes": by_category,
        "by_module_bytes": dict(sorted(on_modules.items(), key=lambda item: -item[1])),
    }


def differences(eager: Figures, other: Figures) -> Figures:
    """Return the bytes of each category and module at one peak less those at the peak of the eager run, largest first.

    Zeros are left out. Modules have the same paths in both runs, because the models compile themselves in place.
    """
    found: Figures = {"peak_bytes": other["peak_allocated_bytes"] - eager["peak_allocated_bytes"]}
    for key in ("by_category_bytes", "by_module_bytes", "no_module_bytes"):
        both = {name: other[key].get(name, 0) - eager[key].get(name, 0) for name in {**eager[key], **other[key]}}
        found[key] = dict(sorted(((name, size) for name, size in both.items() if size), key=lambda item: -abs(item[1])))
    return found


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
    inside = times[WARM:last] if last > WARM else times[1:last]
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
        recorder = ["-m", "gpuledger", "run", "-q", "--steps", f"1:{RECORDED}", "--out", str(place)]
        recorder += ["--passes", "memory,time"] if mode == "graph" else []  # not taken of graphs by default
        recorded = train([sys.executable, *recorder, *script], directory.parent, arguments.until_s - time.monotonic())
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
    bare = train([sys.executable, *script], directory.parent, arguments.until_s - time.monotonic())
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
    parser.add_argument("--prepare", type=int, default=3, metavar="N", help="compile N models at a time beforehand")
    parser.add_argument("--seconds", type=float, default=290.0, help="end after this time")
    parser.add_argument("--keep", type=Path, help="keep the recorded runs here")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arguments.until_s = time.monotonic() + arguments.seconds
    results: dict[str, Any] = {"environment": describe_environment(device), "small": arguments.small, "models": {}}
    with tempfile.TemporaryDirectory() as temporary:
        place = arguments.keep or Path(temporary)
        results["prepared"] = prepare(place, arguments)
        for name in arguments.models:
            for mode in arguments.modes:
                figures = results["models"][f"{name} {mode}"] = measure_or_say(name, mode, place / name, arguments)
                eager = results["models"].get(f"{name} eager", {})
                if mode != "eager" and "memory" in eager.get("recorded", {}) and "memory" in figures["recorded"]:
                    figures["than_eager"] = differences(eager["recorded"]["memory"], figures["recorded"]["memory"])
                print(line_of(name, mode, figures), flush=True)
                write_results(arguments.out, relative(results))


def prepare(place: Path, arguments: argparse.Namespace) -> Figures:
    """Compile every model in the modes that compile, several models at a time; return the seconds and failures."""
    modes = [mode for mode in arguments.modes if mode in ("compiled", "autotuned", "captured")]
    if not arguments.prepare or not modes:
        return {}
    started_s = time.monotonic()
    size = ["--small"] if arguments.small else []

    def compile_all(name: str) -> list[str]:
        (place / name).mkdir(parents=True, exist_ok=True)
        failures = []
        for mode in modes:
            recorder = [
                "-m",
                "gpuledger",
                "run",
                "-q",
                "--passes",
                "memory",
                "--out",
                str(place / name / f"first-{mode}"),
            ]
            script = [str(LIB / "compiled_one.py"), name, "--mode", mode, "--steps", "2", *size]
            done = train([sys.executable, *recorder, *script], place / name, arguments.until_s - time.monotonic())
            failures += [f"{name} {mode}: {done['failed'][-300:]}"] if "failed" in done else []
        return failures

    with ThreadPoolExecutor(arguments.prepare) as pool:
        failures = [one for some in pool.map(compile_all, arguments.models) for one in some]
    return {"seconds": time.monotonic() - started_s, "failures": failures}


def relative(results: Figures) -> Figures:
    """Return the results with source lines of this repository relative to it."""
    found: Figures = json.loads(json.dumps(results).replace(f"{ROOT}/", ""))
    return found


def measure_or_say(name: str, mode: str, place: Path, arguments: argparse.Namespace) -> Figures:
    """Return all figures of one model in one mode, or how measuring them failed: the other models are to go on."""
    directory = place / mode
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return measure(name, mode, directory, arguments)
    except Exception:
        return {"recorded": {"program": {"failed": traceback.format_exc()[-2000:]}}}


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
        f"than eager {figures.get('than_eager', {}).get('peak_bytes', 0) / 2**20:+.1f} MiB, "
        f"inside x{steps.get('inside_ratio')}, outside x{steps.get('outside_ratio')}"
    )


if __name__ == "__main__":
    main()
