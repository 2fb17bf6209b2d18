"""Measures whether the timing measurement leaves a slow-down behind: steps after it, against steps before it.

Each model trains in two processes, which take turns: one is recorded between its two halves (one recorded step and two
profiled ones), the other is not. A half is blocks of steps between two synchronizations of the GPU. The figure is the
ratio of the halves' medians, recorded over bare, so that what a process or a warming GPU changes cancels. Rounds
repeat this with the order turned; the figure of a model is the median of its rounds.

Where the CPU is the limit, other work on the machine makes blocks longer and never shorter. ``fastest`` is therefore
the same ratio of the halves' fastest tenth of blocks, and ``host`` that of the CPU time of the training thread.

Usage: python bench/time/after_timing.py --out bench/time/results/h200/after_timing.json [--rounds 2] [--half-s 2]
           [--models neumf,gpt2] [--passes memory,time] [--small]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from models import EIGHT, MODELS

import gpuledger

WARM_UP_STEPS = 10
BLOCKS = 30
TARGET = 0.005


def half(step: Callable[[], None], wait: Callable[[], None], length_s: float) -> dict[str, list[float]]:
    """Return the time of a step, and its CPU time, in each of some blocks that take so long together, in seconds."""
    wait()
    started_s = time.perf_counter()
    step()
    wait()
    steps = max(1, round(length_s / BLOCKS / (time.perf_counter() - started_s)))
    times_s, host_s = [], []
    for _ in range(BLOCKS):
        started_s, used_s = time.perf_counter(), time.thread_time()
        for _ in range(steps):
            step()
        host_s.append((time.thread_time() - used_s) / steps)
        wait()
        times_s.append((time.perf_counter() - started_s) / steps)
    return {"times_s": times_s, "host_s": host_s}


def measure(given: argparse.Namespace, model: str, *, is_recorded: bool) -> dict[str, Any]:
    """Return the two halves of one process, and the steps that were profiled between them."""
    torch.manual_seed(0)
    workload = MODELS[model].build(given.device, small=given.small, batch_size=0)
    batch = workload.make_batch()
    wait = torch.cuda.synchronize if given.device.startswith("cuda") else (lambda: None)

    def step() -> None:
        workload.train(batch)

    for _ in range(WARM_UP_STEPS):
        step()
    before = half(step, wait, given.half_s)
    profiled = None
    if is_recorded:
        with tempfile.TemporaryDirectory() as directory:
            out = Path(directory) / "run"
            with gpuledger.record(out=out, steps=(1, 1), passes=given.passes) as recording:
                for _ in range(4):
                    step()
            profiled = recording.run().rank().manifest.time_steps
    else:
        for _ in range(4):
            step()
    return {"before": before, "after": half(step, wait, given.half_s), "profiled": profiled}


def in_a_fork(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what ``run`` returns in a forked process, which has loaded torch and not used the GPU yet."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = json.dumps(run())
        except BaseException:
            text = json.dumps({"error": traceback.format_exc()})
        with os.fdopen(writing, "w") as file:
            file.write(text)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": "the process ended without a result"}


def slowdown(
    bare: dict[str, Any],
    recorded: dict[str, Any],
    of: Callable[[list[float]], float] = statistics.median,
    what: str = "times_s",
) -> float:
    """Return the ratio of the halves, recorded over bare: of ``of`` of their blocks' ``what``."""
    ratios = [of(one["after"][what]) / of(one["before"][what]) for one in (bare, recorded)]
    return ratios[1] / ratios[0]


def fastest_tenth(times_s: list[float]) -> float:
    """Return the 10th percentile."""
    return statistics.quantiles(times_s, n=10)[0]


def main() -> None:
    """Measure the models and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=",".join(EIGHT))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--half-s", type=float, default=2.0)
    parser.add_argument("--passes", default="memory,time", help="memory alone shows what is left behind without times")
    parser.add_argument("--device", default="cuda" if torch.cuda.device_count() else "cpu")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    environment = in_a_fork(lambda: describe_environment(given.device))  # it uses the GPU, which forbids later forks
    rows: dict[str, dict[str, Any]] = {}
    for turn in range(given.rounds):
        for model in given.models.split(","):
            pair = {}
            for is_recorded in (False, True) if turn % 2 == 0 else (True, False):
                pair[is_recorded] = in_a_fork(
                    lambda model=model, is_recorded=is_recorded: measure(given, model, is_recorded=is_recorded)
                )
            row = rows.setdefault(model, {"rounds": [], "errors": []})
            errors = [one["error"] for one in pair.values() if "error" in one]
            row["errors"] += errors
            if not errors:
                row["rounds"].append(
                    {
                        "slowdown": slowdown(pair[False], pair[True]),
                        "fastest": slowdown(pair[False], pair[True], fastest_tenth),
                        "host": slowdown(pair[False], pair[True], what="host_s"),
                        "step_s": statistics.median(pair[False]["before"]["times_s"]),
                        "host_s": statistics.median(pair[False]["before"]["host_s"]),
                        "profiled": pair[True]["profiled"],
                    }
                )
            if row["rounds"]:
                for figure in ("slowdown", "fastest", "host"):
                    row[figure] = statistics.median(one[figure] for one in row["rounds"])
                    print(model, figure, *(f"{one[figure]:.4f}" for one in row["rounds"]), flush=True)
            _write(given, environment, rows)


def _write(given: argparse.Namespace, environment: dict[str, Any], rows: dict[str, dict[str, Any]]) -> None:
    found = [row["slowdown"] for row in rows.values() if "slowdown" in row]
    summary = {
        "models": len(found),
        "median": statistics.median(found) if found else None,
        "most": max(found, default=None),
        "within_target": sum(abs(one - 1) <= TARGET for one in found),
        "target": TARGET,
    }
    about = {"rounds": given.rounds, "half_s": given.half_s, "blocks": BLOCKS, "small": given.small}
    about["passes"] = given.passes
    write_results(given.out, {"environment": environment, **about, "summary": summary, "models": rows})


if __name__ == "__main__":
    main()
