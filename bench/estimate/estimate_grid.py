"""Measures how right an estimate is: a grid of trainings on the GPU, and the same lines estimated without one.

``--truth DIR`` trains every combination under ``gpuledger run``, several at a time, each in a process of its own
(the counters are the process's own), and keeps what it printed, its peak by category and its journal. ``--estimate``
estimates the same script on this machine, needs no GPU, and writes truth, estimate and errors side by side.

Usage:
    python bench/estimate/estimate_grid.py --truth OUT_DIRECTORY --limit-s 170
    python bench/estimate/estimate_grid.py --estimate --out bench/estimate/results/h200/estimate.json
    python bench/estimate/estimate_grid.py --sum-up
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import describe_environment, write_results
from grid_train import COMBINATIONS, HELD_OUT, NEW, Combination
from journal_parts import join_parts

HERE = Path(__file__).parent
LEVEL = 0.95
TRUTH = HERE / "results" / "h200" / "estimate_truth.json"


def train(combination: Combination, directory: Path, keep: Path, timeout_s: float) -> dict[str, Any]:
    """Return what one training printed and held at its peak; its journal is kept in ``keep``."""
    run = directory / f"{combination.name}.ledger"
    command = [sys.executable, "-m", "gpuledger", "run", "-q", "--no-stacks", "--steps", "1:4", "--out", str(run)]
    script = [str(LIB / "grid_train.py"), combination.name]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}
    if combination.allocator:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = combination.allocator
    started_s = time.monotonic()
    done = subprocess.run(
        [*command, *script], capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:], "wall_s": round(time.monotonic() - started_s, 1)}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**found, **_peak(run, keep / f"{combination.name}.npz"), "wall_s": round(time.monotonic() - started_s, 1)}


def _peak(run: Path, journal: Path) -> dict[str, Any]:
    from gpuledger.analyze.memory.breakdown import break_down
    from gpuledger.analyze.memory.instant import find_peak
    from gpuledger.services.runs import load

    rank = load(run).rank(0)
    join_parts(run / "rank-0" / "journal", journal)
    breakdown = break_down(rank, find_peak(rank), by=("category",))
    return {
        "recorded_peak_bytes": breakdown.allocated_bytes,
        "by_category": {account.category: account.bytes for account in breakdown.accounts},
        "failed_checks": [check.to_json() for check in rank.manifest.checks if not check.ok],
        "libraries": rank.manifest.libraries and rank.manifest.libraries.to_json(),
    }


def _profiles() -> Any:
    from gpuledger.collect.sampling.calibrate import cache_path, read_profiles

    return read_profiles(cache_path())[0]


def tell_truth(out: Path, chosen: list[Combination], workers: int, limit_s: float) -> None:
    """Train every combination and write ``truth.json`` after each; the first one alone, as it calibrates the GPU."""
    out.mkdir(parents=True, exist_ok=True)
    deadline_s = time.monotonic() + limit_s
    results: dict[str, Any] = {"environment": describe_environment("cuda"), "combinations": {}}
    lock = Lock()

    def one(combination: Combination) -> None:
        left_s = deadline_s - time.monotonic()
        if left_s < 5:
            found: dict[str, Any] = {"failed": ["no time left"]}
        else:
            try:
                found = train(combination, Path(directory), out, left_s)
            except subprocess.TimeoutExpired:
                found = {"failed": ["no time left"]}
            except Exception as error:  # one combination must not cost the others their figures
                found = {"failed": [f"{type(error).__name__}: {error}"]}
        with lock:
            results["combinations"][combination.name] = found
            results["profiles"] = _profiles()
            write_results(out / "truth.json", results)
        print(combination.name, found.get("peak_allocated_bytes", found), found.get("wall_s"), flush=True)

    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(workers) as pool:
        one(chosen[0])
        for _ in pool.map(one, chosen[1:]):
            pass


def estimate(combination: Combination, directory: Path) -> dict[str, Any]:
    """Return what the same script would hold, followed on this machine without a GPU."""
    from gpuledger.analyze.allocator.alloc_conf import parse_alloc_conf
    from gpuledger.analyze.memory.breakdown import break_down
    from gpuledger.analyze.memory.instant import find_peak
    from gpuledger.errors import GpuLedgerError
    from gpuledger.simulate.catalogue import find_card
    from gpuledger.simulate.estimate.run import Order, estimate_program

    program = (str(LIB / "grid_train.py"), combination.name)
    order = Order(program, find_card("h200"), settings=parse_alloc_conf(combination.allocator))
    started_s = time.monotonic()
    try:
        found = estimate_program(order, directory / f"{combination.name}.ledger")
    except GpuLedgerError as error:
        return {"failed": [error.message]}
    rank = found.run.rank(0)
    breakdown = break_down(rank, find_peak(rank), by=("category",))
    return {
        "peak_allocated_bytes": found.peak_allocated_bytes,
        "peak_reserved_bytes": found.peak_reserved_bytes,
        "process_bytes": found.peak_process_bytes,
        "upper_bytes": found.upper_bytes,
        "kind": found.peaks.kind,
        "convolutions": [note for note in found.notes if note.startswith("Convolutions:")],
        "by_category": {account.category: account.bytes for account in breakdown.accounts},
        "wall_s": round(time.monotonic() - started_s, 1),
    }


FIGURES = ("peak_allocated_bytes", "peak_reserved_bytes", "process_bytes")


def errors_of(truth: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return how far an estimate is off, as shares of the truth; by category as shares of the allocated peak."""
    errors: dict[str, Any] = {
        name: found[name] / truth[name] - 1 for name in FIGURES if truth.get(name) and found.get(name)
    }
    if "by_category" in found and truth.get("by_category"):
        whole = truth["recorded_peak_bytes"]
        names = {*truth["by_category"], *found["by_category"]}
        ours, theirs = found["by_category"], truth["by_category"]
        errors["by_category"] = {n: (ours.get(n, 0) - theirs.get(n, 0)) / whole for n in sorted(names)}
    return errors


def compare(truth_file: Path, out: Path, chosen: list[Combination], workers: int) -> None:
    """Estimate every combination, and write truth, estimate and errors side by side after each."""
    kept = json.loads(truth_file.read_text(encoding="utf-8"))
    before = json.loads(out.read_text(encoding="utf-8"))["combinations"] if out.exists() else {}
    results: dict[str, Any] = {
        "note": "Truth: torch with CUDA, on the GPU. Estimates: torch for the CPU, another version, without a GPU.",
        "truth_on": kept["environment"],
        "estimated_on": describe_environment("cpu"),
        "combinations": before,
    }

    def one(combination: Combination) -> tuple[Combination, dict[str, Any]]:
        with tempfile.TemporaryDirectory() as directory:
            return combination, estimate(combination, Path(directory))

    with ThreadPoolExecutor(workers) as pool:
        for combination, found in pool.map(one, chosen):
            truth = kept["combinations"].get(combination.name, {})
            errors = errors_of(truth, found)
            results["combinations"][combination.name] = {"truth": truth, "estimate": found, "error": errors}
            results["summary"] = summarize(results["combinations"])
            write_results(out, results)
            told = "  ".join(f"{name.removesuffix('_bytes')} {errors[name]:+.2%}" for name in FIGURES if name in errors)
            print(f"{combination.name:40s} {told or found.get('failed', 'no truth')}", flush=True)
    print(json.dumps(results["summary"], indent=1))


def summarize(combinations: dict[str, Any]) -> dict[str, Any]:
    """Return median and worst error of each figure, and how many truths lie above their upper end.

    ``above_upper_frac`` is of the upper ends that the grid's own errors give; ``above_upper_left_out_frac`` of those
    that the errors of all other models give, so that no training is held against its own model's error;
    ``above_upper_left_out_models_frac`` counts a model once, by its worst training. ``above_stated_frac``
    is of the upper ends that users are shown: a fair figure for models that are not in the grid.
    """
    summary: dict[str, Any] = {}
    for name in FIGURES:
        sizes = sorted(abs(one["error"][name]) for one in combinations.values() if name in one["error"])
        if sizes:
            summary[name] = {"count": len(sizes), "median": statistics.median(sizes), "worst": sizes[-1]}
    stated = [
        one["truth"]["process_bytes"] > one["estimate"]["upper_bytes"]
        for one in combinations.values()
        if one["truth"].get("process_bytes") and "upper_bytes" in one["estimate"]
    ]
    if stated:
        summary["above_stated_frac"] = sum(stated) / len(stated)
    return summary | above_upper_ends(combinations)


def above_upper_ends(combinations: dict[str, Any], level: float = LEVEL) -> dict[str, Any]:
    """Return which share of truths lies above the upper end, by all errors and by the other models' alone."""
    from gpuledger.simulate.interval import excess_factor, worst_by_model

    held: dict[str, dict[str, float]] = {}
    for name, one in combinations.items():
        if one["truth"].get("process_bytes") and "kind" in one["estimate"]:
            ratio = one["truth"]["process_bytes"] / one["estimate"]["process_bytes"]
            held.setdefault(one["estimate"]["kind"], {})[name] = ratio
    above, above_others, models = [], set(), 0
    for errors in held.values():
        models += len(worst_by_model(errors))
        for name, ratio in errors.items():
            model = name.partition("-")[0]
            others = {other: its_ratio for other, its_ratio in errors.items() if other.partition("-")[0] != model}
            above.append(ratio > excess_factor(errors, level))
            if not others or ratio > excess_factor(others, level):
                above_others.add(name)
    if not above:
        return {}
    return {
        "above_upper_frac": sum(above) / len(above),
        "above_upper_left_out": sorted(above_others),
        "above_upper_left_out_frac": len(above_others) / len(above),
        "above_upper_left_out_models_frac": len(worst_by_model(dict.fromkeys(above_others, 1.0))) / models,
    }


def sum_up_again(out: Path) -> None:
    """Take the upper ends that ``out`` holds anew from the present interval, and sum it up."""
    from gpuledger.simulate.interval import upper_factor

    results = json.loads(out.read_text(encoding="utf-8"))
    for one in results["combinations"].values():
        found = one["estimate"]
        if "upper_bytes" in found:
            found["upper_bytes"] = int(found["process_bytes"] * upper_factor(LEVEL, found["kind"]))
    results["summary"] = summarize(results["combinations"])
    write_results(out, results)
    print(json.dumps(results["summary"], indent=1))


def add_truth(out: Path, truth_file: Path) -> None:
    """Hold estimates that were made before there was a truth against it; nothing is estimated again."""
    results = json.loads(out.read_text(encoding="utf-8"))
    kept = json.loads(truth_file.read_text(encoding="utf-8"))
    for name, one in results["combinations"].items():
        one["truth"] = kept["combinations"].get(name, {})
        one["error"] = errors_of(one["truth"], one["estimate"])
    results["truth_on"] = kept["environment"]
    results["summary"] = summarize(results["combinations"])
    write_results(out, results)
    print(json.dumps(results["summary"], indent=1))


def join_sets(out: Path, others: list[Path]) -> None:
    """Write into ``out`` how many truths lie above when the interval is made of its trainings and the others'."""
    results = json.loads(out.read_text(encoding="utf-8"))
    every = dict(results["combinations"])
    for other in others:
        every |= json.loads(other.read_text(encoding="utf-8"))["combinations"]
    results["summary_of_all"] = above_upper_ends(every)
    write_results(out, results)


def main() -> None:
    """Tell the truth or estimate it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", type=Path, metavar="DIR", help="train on the GPU of this machine")
    parser.add_argument("--estimate", action="store_true", help="estimate on this machine")
    parser.add_argument("--sum-up", action="store_true", help="estimate nothing; take interval and summary anew")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE", help="sum --out up together with others")
    parser.add_argument("--add-truth", action="store_true", help="hold kept estimates against --truth-file")
    parser.add_argument("--truth-file", type=Path, default=TRUTH, help="what --truth wrote as truth.json")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "h200" / "estimate.json")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="combinations whose name holds this")
    parser.add_argument("--held-out", action="store_true", help="the models that no rule was written in the light of")
    parser.add_argument("--new", action="store_true", help="the models that rules had not seen when they were frozen")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--limit-s", type=float, default=170.0)
    arguments = parser.parse_args()
    everything = NEW if arguments.new else HELD_OUT if arguments.held_out else COMBINATIONS
    chosen = [one for one in everything if not arguments.only or any(word in one.name for word in arguments.only)]
    if arguments.truth:
        tell_truth(arguments.truth, chosen, arguments.workers, arguments.limit_s)
    if arguments.estimate:
        compare(arguments.truth_file, arguments.out, chosen, arguments.workers)
    if arguments.add_truth:
        add_truth(arguments.out, arguments.truth_file)
    if arguments.join:
        join_sets(arguments.out, arguments.join)
    if arguments.sum_up:
        sum_up_again(arguments.out)


if __name__ == "__main__":
    main()
