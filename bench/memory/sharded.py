"""Measures recordings of sharded training on several GPUs: peaks against torch's counters, categories, and overhead.

A Llama-shaped model is trained in each way without recording and under ``gpuledger run``, each time in processes of its
own. Each rank prints the allocator's peaks and its step times. Two more runs come first: one with a rank that sleeps
30 ms in each step, with CUDA events before the collectives, and one with a rank that keeps an activation of 8 GiB. The
first has ``waits_by_rank``: the wait of each rank by ``show`` and by the events, in the same steps. Both have
``first_line``, with which ``show`` begins. ``--only straggler,imbalance`` measures nothing else. Jobs import their
libraries while another job uses the GPUs, and use the GPUs in turn.

The result is written after each job. ``failed`` has the errors of jobs, and ``not_run`` the jobs that did not begin
within ``--limit-s``. A second call with ``--resume`` adds them.

Usage: python bench/memory/sharded.py --out bench/memory/results/h200/sharded.json
       python bench/memory/sharded.py --ranks 4 --out bench/memory/results/h100/sharded_4.json
       python bench/memory/sharded.py --only straggler,imbalance --limit-s 180 \
           --out bench/memory/results/h200/sharded_waits_2.json   # two GPUs, ends within 200 s
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from sharded_figures import overhead_figures, run_figures, wait_figures
from sharded_jobs import JobFailedError, Jobs
from sharded_models import WAYS

from gpuledger.services.runs import load

EVENTS, PLAIN = "ddp_events", "fsdp"
SLEEP_MS, IMBALANCE_MIB = 30.0, 8192.0
AT_A_TIME = 3
"""One job uses the GPUs, the others import their libraries, or their recording is read."""


def measure(jobs: Jobs, name: str, way: str) -> dict[str, Any]:
    """Return the figures of a way, trained with and without a recording in turn, each in processes of its own."""
    found: dict[str, Any] = {}
    pairs = []
    for repeat in range(jobs.given.repeats):
        bare, recorded = f"{name}_bare_{repeat}", f"{name}_{repeat}"
        try:
            jobs.train(bare, way)
        except JobFailedError as error:
            jobs.fail(name, error)
        found = found or record(jobs, name, recorded, way)
        if repeat:
            jobs.train(recorded, way, run=jobs.place / f"{recorded}.ledger")
        pairs.append((jobs.printed(bare, way), jobs.printed(recorded, way)))
    return {**found, "bare": [bare for bare, _ in pairs], **overhead_figures(pairs, jobs.given.window)}


def record(jobs: Jobs, name: str, place: str, way: str, *more: str) -> dict[str, Any]:
    """Return the figures of one recorded training, also if it failed at its end."""
    run = jobs.place / f"{place}.ledger"
    try:
        jobs.train(place, way, *more, run=run)
    except JobFailedError as error:
        jobs.fail(name, error)
    printed = jobs.printed(place, way)
    return {"printed": printed, "first_line": first_line(run), **run_figures(load(run), printed)}


def record_straggler(jobs: Jobs, name: str) -> dict[str, Any]:
    """Return what is said about a rank that sleeps, and the waits beside direct measurements."""
    run = jobs.place / f"{name}.ledger"
    passes = f"memory,time:{jobs.given.profiled_steps}"
    jobs.train(name, EVENTS, "--sleep-ms", str(SLEEP_MS), run=run, passes=passes)
    return {"first_line": first_line(run), **wait_figures(load(run), jobs.printed(name, EVENTS))}


def first_line(run: Path) -> str:
    """Return the first line that ``gpuledger show`` prints of a run."""
    command = [sys.executable, "-m", "gpuledger", "show", str(run)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "COLUMNS": "250"})
    return shown.stdout.partition("\n")[0]


def record_imbalance(jobs: Jobs, name: str) -> dict[str, Any]:
    """Return what is said about a rank that keeps a larger activation."""
    return record(jobs, name, name, PLAIN, "--imbalance-mib", str(jobs.given.imbalance_mib))


def options() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--size", default="1b")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--window", type=int, default=10)
    parser.add_argument("--profiled-steps", type=int, default=10, help="steps with times; waits are compared in them")
    parser.add_argument("--repeats", type=int, default=1, help="trainings of each way with and without a recording")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ways", default=",".join(way for way in WAYS if way != EVENTS))
    parser.add_argument("--imbalance-mib", type=float, default=IMBALANCE_MIB)
    parser.add_argument("--only", default="", help="jobs to run, with commas between them; by default all of them")
    parser.add_argument("--limit-s", type=float, default=195.0)
    parser.add_argument("--resume", action="store_true", help="add the jobs that are not yet in --out, or failed there")
    return parser.parse_args()


def main() -> None:
    """Measure all ways and write the result."""
    given = options()
    order: dict[str, Any] = {"straggler": record_straggler, "imbalance": record_imbalance}
    order |= {way: partial(measure, way=way) for way in given.ways.split(",")}
    names = given.only.split(",") if given.only else list(order)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        jobs = Jobs(Path(directory), given, names)
        if given.resume:
            jobs.go_on()
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(lambda name: jobs.run(name, order[name]), list(jobs.waiting)))
        jobs.write()


if __name__ == "__main__":
    main()
