"""Measures what Python stacks in the allocator's history cost, and where that time is visible.

Each model runs in a process of its own. Blocks of steps take turns, and the order turns with every round: bare, history
without stacks, stacks of allocations, stacks of every event. A stack takes CPU time of the thread that allocates. It
lengthens a step only if the CPU limits it, so the script records the CPU time of a step and the share of the step in
which the CPU issues work.

At the end, the first snapshot with stacks is read with and without gpuledger's placeholder for torch's compiler, which
torch otherwise imports to name frames.

Usage: python bench/time/history_stacks.py --out bench/time/results/h200/history_stacks.json --seconds 130
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from environment import describe_environment, write_results
from models import EIGHT, MODELS

from gpuledger.collect.adapter.dynamo import without_importing_compiler

WAYS: dict[str, dict[str, Any] | None] = {
    "bare": None,
    "history, no stacks": {"context": None, "stacks": "python"},
    "history, stacks of allocations": {"context": "alloc", "stacks": "python"},
    "history, stacks of every event": {"context": "all", "stacks": "python"},
}
WARM_UP_STEPS, BLOCK_STEPS, FEWEST_ROUNDS = 8, 6, 4
MAX_ENTRIES = 400_000


def time_block(step: Callable[[], None], steps: int) -> dict[str, float]:
    """Return seconds per step, from idle GPU to idle GPU, the CPU time of it, and the share in which work is issued."""
    torch.cuda.synchronize()
    started_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    issued_s, issued_cpu_s = time.perf_counter(), time.process_time()
    torch.cuda.synchronize()
    ended_s = time.perf_counter()
    return {
        "step_s": (ended_s - started_s) / steps,
        "cpu_s": (issued_cpu_s - cpu_s) / steps,
        "issued_frac": (issued_s - started_s) / (ended_s - started_s),
    }


def measure_model(name: str, seconds: float) -> dict[str, Any]:
    """Return ratios against the bare blocks of the same round, and what a snapshot with stacks takes."""
    torch.manual_seed(0)
    started_s = time.perf_counter()
    step = MODELS[name].build("cuda", small=False).stepper()
    for _ in range(WARM_UP_STEPS):
        step()
    blocks: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    events = 0
    names, rounds = list(WAYS), 0
    while rounds < FEWEST_ROUNDS or time.perf_counter() - started_s < seconds:
        for way in names[rounds % 4 :] + names[: rounds % 4]:
            how = WAYS[way]
            if how is not None:
                torch.cuda.memory._record_memory_history("all", max_entries=MAX_ENTRIES, clear_history=True, **how)
            step()
            blocks[way].append(time_block(step, BLOCK_STEPS))
            if how is not None and not events:
                events = len(torch._C._cuda_memorySnapshot(None)["device_traces"][0]) // (BLOCK_STEPS + 1)
            torch.cuda.memory._record_memory_history(None)
        rounds += 1
    return {"rounds": rounds, "events_per_step": events, **_figures(blocks), "snapshot": measure_snapshot(step)}


def _figures(blocks: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    bare = blocks["bare"]
    return {
        way: {
            "step_ms": round(statistics.median(one["step_s"] for one in found) * 1e3, 4),
            "cpu_ms": round(statistics.median(one["cpu_s"] for one in found) * 1e3, 4),
            "issued_frac": round(statistics.median(one["issued_frac"] for one in found), 3),
            "ratio": round(
                statistics.median(one["step_s"] / base["step_s"] for one, base in zip(found, bare, strict=True)), 4
            ),
        }
        for way, found in blocks.items()
    }


def measure_snapshot(step: Callable[[], None]) -> dict[str, Any]:
    """Return the seconds of the first snapshots with stacks of one step, with the placeholder and then without it."""
    found: dict[str, Any] = {"compiler_imported_before": "torch._inductor" in sys.modules}
    torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=MAX_ENTRIES)
    step()
    torch.cuda.synchronize()
    for label in ("guarded_s", "guarded_again_s", "plain_s", "plain_again_s"):
        before, started_s = len(sys.modules), time.perf_counter()
        if label.startswith("guarded"):
            with without_importing_compiler():
                torch._C._cuda_memorySnapshot(None)
        else:
            torch._C._cuda_memorySnapshot(None)
        found[label] = round(time.perf_counter() - started_s, 4)
        found[f"{label}_modules_imported"] = len(sys.modules) - before
    torch.cuda.memory._record_memory_history(None)
    return found


def main() -> None:
    """Measure every model named and write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(EIGHT), choices=list(MODELS))
    parser.add_argument("--out", type=Path, default=Path("bench/time/results/h200/history_stacks.json"))
    parser.add_argument("--seconds", type=float, default=130.0, help="for all models together")
    parser.add_argument("--one", choices=list(MODELS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure_model(arguments.one, arguments.seconds)))
        return
    results: dict[str, Any] = {"environment": describe_environment("cuda"), "models": {}}
    share_s = 0.3 * arguments.seconds / len(arguments.models)
    deadline_s = time.perf_counter() + arguments.seconds
    for name in arguments.models:
        if time.perf_counter() > deadline_s:
            break
        command = [sys.executable, __file__, "--one", name, "--seconds", str(share_s)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        failed = {"failed": f"exit status {done.returncode}"}
        results["models"][name] = failed if done.returncode else json.loads(done.stdout.splitlines()[-1])
        print(name, json.dumps(results["models"][name]), flush=True)
        write_results(arguments.out, results)


if __name__ == "__main__":
    main()
