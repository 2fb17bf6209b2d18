"""Measures recordings of sharded training on two GPUs: peaks against torch's counters, categories, and overhead.

A Llama-shaped model is trained in each way without recording (all ways in one pair of processes) and under
``gpuledger run`` (each way in processes of its own). Each rank prints the allocator's peaks and its step times. Two
more runs have a rank that sleeps 30 ms in each step, with CUDA events before the collectives, and a rank that keeps an
activation of 8 GiB: ``--only straggler,imbalance`` measures nothing else. Jobs import their libraries while another job
uses the GPUs, and use the GPUs in turn.

The result is written after each job. ``failed`` has the errors of jobs, and ``not_run`` the jobs that did not begin
within ``--limit-s``.

Usage: python bench/memory/sharded.py --out bench/memory/results/h200/sharded.json
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from sharded_figures import overhead_figures, run_figures, wait_figures
from sharded_jobs import LEFT_S, JobFailedError, Jobs
from sharded_models import WAYS

from gpuledger.services.runs import load

BARE, EVENTS, PLAIN = "bare", "ddp_events", "fsdp"
SLEEP_MS, IMBALANCE_MIB = 30.0, 8192.0
AT_A_TIME = 3
"""One job uses the GPUs, the others import their libraries, or their recording is read."""


def train_bare(jobs: Jobs, name: str) -> dict[str, Any]:
    """Train in all ways without recording. After a way that fails, the others are started again."""
    ways = jobs.given.ways.split(",")
    while ways and jobs.left_s > LEFT_S:
        try:
            jobs.train(name, ",".join(ways))
        except JobFailedError as error:
            jobs.fail(name, error)
        without = [way for way in ways if not jobs.printed(name, way)]
        ways = without[1:]  # the first one without figures is the one that failed
    peaks = {
        way: [one["peak_allocated_bytes"] for one in jobs.printed(name, way)] for way in jobs.given.ways.split(",")
    }
    return {"torch_peak_of_program_bytes": peaks}


def record(jobs: Jobs, name: str, way: str, *more: str) -> dict[str, Any]:
    """Return the figures of one recorded training, also if it failed at its end."""
    run = jobs.place / f"{name}.ledger"
    try:
        jobs.train(name, way, *more, run=run)
    except JobFailedError as error:
        jobs.fail(name, error)
    printed = jobs.printed(name, way)
    return {"printed": printed, **run_figures(load(run), printed)}


def record_straggler(jobs: Jobs, name: str) -> dict[str, Any]:
    """Return what is said about a rank that sleeps, and the waits beside direct measurements."""
    run = jobs.place / f"{name}.ledger"
    jobs.train(name, EVENTS, "--sleep-ms", str(SLEEP_MS), run=run, passes="memory,time")
    return wait_figures(load(run), jobs.printed(name, EVENTS))


def record_imbalance(jobs: Jobs, name: str) -> dict[str, Any]:
    """Return what is said about a rank that keeps a larger activation."""
    return record(jobs, name, PLAIN, "--imbalance-mib", str(jobs.given.imbalance_mib))


def compare_with_bare(jobs: Jobs) -> None:
    """Add the overhead of recording to the results of every way."""
    for way in jobs.given.ways.split(","):
        recorded, bare = jobs.results.get(way, {}).get("printed"), jobs.printed(BARE, way)
        if recorded and bare:
            jobs.results[way] |= overhead_figures(bare, recorded, jobs.given.window)


def options() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--size", default="1b")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--window", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ways", default=",".join(way for way in WAYS if way != EVENTS))
    parser.add_argument("--imbalance-mib", type=float, default=IMBALANCE_MIB)
    parser.add_argument("--only", default="", help="jobs to run, with commas between them; by default all of them")
    parser.add_argument("--limit-s", type=float, default=195.0)
    return parser.parse_args()


def main() -> None:
    """Measure all ways and write the result."""
    given = options()
    ways = given.ways.split(",")
    recorded = {way: partial(record, way=way) for way in ways}
    order = {BARE: train_bare, **dict(list(recorded.items())[:2])}
    order |= {"straggler": record_straggler, "imbalance": record_imbalance, **recorded}
    if given.only:
        order = {name: order[name] for name in given.only.split(",")}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        jobs = Jobs(Path(directory), given, compare_with_bare, list(order))
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(lambda name: jobs.run(name, order[name]), order))
        jobs.write()


if __name__ == "__main__":
    main()
