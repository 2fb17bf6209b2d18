"""Compares steps after the timing measurement with steps before it, to find a slow-down that it leaves behind.

Each model trains in processes, which take turns: one is not recorded, and the others are recorded between their two
halves (one recorded step and three profiled ones). A half is blocks of steps between two synchronizations of the GPU.
The figure is the ratio of the halves' medians, recorded over bare, so that what a process or a warming GPU changes
cancels. Rounds repeat this with the order turned; the figure of a model is the median of its rounds.

Variants separate the causes of a slow-down. ``timing``: the recording is closed before the second half. ``memory``: the
same without the timing measurement. ``tables``: nothing is recorded, and the modules are loaded that build the tables.
``open``: the recording stays open, as it does without a flight recorder until the program ends. ``flight``: it stays
open with the flight recorder, as under ``gpuledger run``.

Where the CPU is the limit, other work on the machine makes blocks longer and never shorter. ``fastest`` is therefore
the same ratio of the halves' fastest tenth of blocks, and ``host`` that of the CPU time of the training thread.
``collected_frac`` is the share of each half in which Python's garbage collector ran, of bare and recorded processes.

Usage: python bench/time/after_timing.py --out bench/time/results/h200/after_timing.json [--rounds 2] [--half-s 2]
           [--models neumf,gpt2] [--variants timing,memory,tables,open,flight] [--small]
"""

from __future__ import annotations

import argparse
import gc
import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from forks import in_a_fork
from models import EIGHT, MODELS

import gpuledger
from gpuledger.services.recording import Recording

BARE = "bare"
VARIANTS = ("timing", "memory", "tables", "open", "flight")
WARM_UP_STEPS = 10
STEPS_BETWEEN = 6
BLOCKS = 30
TARGET = 0.005


class Collections:
    """Adds up the time of Python's garbage collections."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started_s = 0.0
        gc.callbacks.append(self._seen)

    def _seen(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._started_s = time.perf_counter()
        else:
            self.seconds += time.perf_counter() - self._started_s


def half(
    step: Callable[[], None], wait: Callable[[], None], length_s: float, collections: Collections
) -> dict[str, Any]:
    """Return the time of a step, and its CPU time, in each of some blocks that take so long together, in seconds."""
    wait()
    started_s = time.perf_counter()
    step()
    wait()
    steps = max(1, round(length_s / BLOCKS / (time.perf_counter() - started_s)))
    times_s, host_s = [], []
    collected_s = collections.seconds
    for _ in range(BLOCKS):
        started_s, used_s = time.perf_counter(), time.thread_time()
        for _ in range(steps):
            step()
        host_s.append((time.thread_time() - used_s) / steps)
        wait()
        times_s.append((time.perf_counter() - started_s) / steps)
    collected_frac = (collections.seconds - collected_s) / (sum(times_s) * steps)
    return {"times_s": times_s, "host_s": host_s, "collected_frac": collected_frac}


def between_halves(variant: str, step: Callable[[], None], out: Path) -> Recording | None:
    """Take the steps between the halves. Return a recording that stays open."""
    if variant in (BARE, "tables"):
        if variant == "tables":
            _load_tables()
        for _ in range(STEPS_BETWEEN):
            step()
        return None
    recording = gpuledger.record(out=out, steps=(1, 1), passes="memory" if variant == "memory" else "memory,time")
    recording.flies = variant == "flight"
    recording.__enter__()
    for _ in range(STEPS_BETWEEN):
        step()
    if variant in ("open", "flight"):
        return recording
    recording.__exit__(None, None, None)
    return None


def _load_tables() -> None:
    """Load what builds and reads the tables of a recording."""
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401

    import gpuledger.analyze.view.view
    import gpuledger.services.runs  # noqa: F401


def measure(given: argparse.Namespace, model: str, variant: str) -> dict[str, Any]:
    """Return the two halves of one process, and the steps that were profiled between them."""
    collections = Collections()
    torch.manual_seed(0)
    workload = MODELS[model].build(given.device, small=given.small, batch_size=0)
    batch = workload.make_batch()
    wait = torch.cuda.synchronize if given.device.startswith("cuda") else (lambda: None)

    def step() -> None:
        workload.train(batch)

    for _ in range(WARM_UP_STEPS):
        step()
    before = half(step, wait, given.half_s, collections)
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run.ledger"
        recording = between_halves(variant, step, out)
        after = half(step, wait, given.half_s, collections)
        if recording is not None:
            recording.__exit__(None, None, None)
        profiled = gpuledger.load(out).rank().manifest.time_steps if out.exists() else None
    return {"before": before, "after": after, "profiled": profiled}


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


def summarize(pair: dict[str, dict[str, Any]], variant: str) -> dict[str, Any]:
    """Return the figures of one variant in one round."""
    bare, recorded = pair[BARE], pair[variant]
    return {
        "slowdown": slowdown(bare, recorded),
        "fastest": slowdown(bare, recorded, fastest_tenth),
        "host": slowdown(bare, recorded, what="host_s"),
        "step_s": statistics.median(bare["before"]["times_s"]),
        "host_s": statistics.median(bare["before"]["host_s"]),
        "collected_frac": {
            name: [one[half]["collected_frac"] for half in ("before", "after")]
            for name, one in (("bare", bare), ("recorded", recorded))
        },
        "profiled": recorded["profiled"],
    }


def measure_round(given: argparse.Namespace, model: str, rows: dict[str, dict[str, Any]], turn: int) -> None:
    """Add one round to the rows of a model: one process for each variant, and a bare one."""
    pair: dict[str, dict[str, Any]] = {}
    order = [BARE, *given.variants.split(",")]
    for variant in order if turn % 2 == 0 else order[::-1]:
        pair[variant] = in_a_fork(lambda variant=variant: measure(given, model, variant))
    for variant in order[1:]:
        row = rows.setdefault(variant, {"rounds": [], "errors": []})
        errors = [pair[one]["error"] for one in (BARE, variant) if "error" in pair[one]]
        row["errors"] += errors
        if not errors:
            row["rounds"].append(summarize(pair, variant))
        for figure in ("slowdown", "fastest", "host") if row["rounds"] else ():
            row[figure] = statistics.median(one[figure] for one in row["rounds"])
            print(model, variant, figure, *(f"{one[figure]:.4f}" for one in row["rounds"]), flush=True)
        if row["rounds"]:
            print(model, variant, "collected", row["rounds"][-1]["collected_frac"], flush=True)


def main() -> None:
    """Measure the models and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=",".join(EIGHT))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--half-s", type=float, default=2.0)
    parser.add_argument("--variants", default=VARIANTS[0], help=f"one or more of {','.join(VARIANTS)}")
    parser.add_argument("--device", default="cuda" if torch.cuda.device_count() else "cpu")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    unknown = set(given.variants.split(",")) - set(VARIANTS)
    if unknown:
        parser.error(f"unknown variants: {', '.join(sorted(unknown))}")
    environment = in_a_fork(lambda: describe_environment(given.device))  # it uses the GPU, which forbids later forks
    for package in {MODELS[model].needs for model in given.models.split(",")} - {""}:
        importlib.import_module(package)  # once, before the forks
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for turn in range(given.rounds):
        for model in given.models.split(","):
            measure_round(given, model, rows.setdefault(model, {}), turn)
            _write(given, environment, rows)


def _write(given: argparse.Namespace, environment: dict[str, Any], rows: dict[str, dict[str, dict[str, Any]]]) -> None:
    summary = {}
    for variant in given.variants.split(","):
        found = [row[variant]["slowdown"] for row in rows.values() if "slowdown" in row.get(variant, {})]
        summary[variant] = {
            "models": len(found),
            "median": statistics.median(found) if found else None,
            "most": max(found, default=None),
            "within_target": sum(abs(one - 1) <= TARGET for one in found),
            "target": TARGET,
        }
    about = {"rounds": given.rounds, "half_s": given.half_s, "blocks": BLOCKS, "small": given.small}
    write_results(given.out, {"environment": environment, **about, "summary": summary, "models": rows})


if __name__ == "__main__":
    main()
