"""Measures what the flight recorder costs in CPU time: per step of a tiny training on the CPU, and at an error.

A step is measured after the recorded ones, in processes with the flight recorder and without it, in turn: the process's
CPU time of 400 steps. The error is one with 100,000 live blocks, as a snapshot made of numbers, from the error to the
end of the writing. Ends within 5 minutes.

Usage: python bench/time/flight_recorder_cpu.py --out bench/time/results/cpu/flight_recorder.json [--rounds 11]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "lib"), str(ROOT / "tests" / "support")]

from environment import describe_environment, write_results
from failing_allocator import FACTS, MIB, Recorded, counters, snapshot

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.session.session import Session

WARM, MEASURED = 60, 400
LIVE_BLOCKS, BLOCK_BYTES = 100_000, 4096
ERRORS = 9


def train() -> float:
    """Return the CPU time of a step, in µs, after the recorded ones."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    started_ns = 0
    for number in range(WARM + MEASURED):
        if number == WARM:
            started_ns = time.process_time_ns()
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    return (time.process_time_ns() - started_ns) / 1000 / MEASURED


def step_us(directory: Path, *, flies: bool) -> float:
    """Return the CPU time of a step in a forked process that is recorded, with the flight recorder or without it."""
    answer = directory / "answer"
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            run = directory / f"{time.time_ns()}.ledger"
            (run / "rank-0").mkdir(parents=True)
            settings = RecordSettings(run, stacks=True, devices="cpu", flight_recorder=flies)
            session = Session(settings, rank_directory=lambda: run / "rank-0", from_outside=True, begins_late=False)
            session.start()
            answer.write_text(repr(train()))
        os._exit(0)
    os.waitpid(child, 0)
    found = float(answer.read_text())
    answer.unlink()
    return found


def error_ms() -> dict[str, float]:
    """Return CPU time and wall time in ms of an error with many live blocks, until all is written."""
    taken = snapshot([BLOCK_BYTES] * LIVE_BLOCKS, [])
    live_bytes = LIVE_BLOCKS * BLOCK_BYTES
    allocator = {
        "memory_stats": lambda _device: counters(live_bytes),
        "light_snapshot": lambda: taken,
        "memory_fraction": lambda _device: 1.0,
    }
    with tempfile.TemporaryDirectory() as directory, mock.patch.multiple(torch_private, **allocator):
        recorded = Recorded(Path(directory))
        cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
        recorded.failures.happened({**FACTS, "tried_bytes": MIB}, 3)
        recorded.journal.write()
        return {
            "cpu_ms": (time.process_time_ns() - cpu_ns) / 1e6,
            "wall_ms": (time.perf_counter_ns() - wall_ns) / 1e6,
        }


def summary(values: list[float]) -> dict[str, Any]:
    """Return the median, the quartiles and the values."""
    quartiles = statistics.quantiles(values, n=4)
    return {"median": statistics.median(values), "quartiles": [quartiles[0], quartiles[2]], "values": values}


def main() -> None:
    """Measure both, and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    errors = [error_ms() for _ in range(ERRORS)]
    with_it, without = [], []
    with tempfile.TemporaryDirectory() as directory:
        for number in range(arguments.rounds):
            for flies in (True, False) if number % 2 else (False, True):
                (with_it if flies else without).append(step_us(Path(directory), flies=flies))
    results = {
        "step_us": {"with": summary(with_it), "without": summary(without)},
        "more_us": statistics.median(with_it) - statistics.median(without),
        "error_of_100000_blocks": {name: summary([one[name] for one in errors]) for name in ("cpu_ms", "wall_ms")},
    }
    print(f"step: {without and statistics.median(without):.0f} us, +{results['more_us']:.0f} us")
    print(f"error: {results['error_of_100000_blocks']['cpu_ms']['median']:.0f} ms of CPU time")
    write_results(arguments.out, {"environment": describe_environment("cpu"), **results})


if __name__ == "__main__":
    main()
