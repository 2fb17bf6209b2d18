"""Measures what the flight recorder costs in CPU time: per step of a tiny training on the CPU, and at an error.

Steps are measured after the recorded ones, in one process: blocks of 10 steps with the flight recorder, and with its
hooks taken out of torch, in turn. Then again without some of its parts. The error is one with 100,000 live blocks, as a
snapshot made of numbers, from the error to the end of the writing. Ends within 5 minutes.

Usage: python bench/time/flight_recorder_cpu.py --out bench/time/results/cpu/flight_recorder.json [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "lib"), str(ROOT / "tests" / "support")]

from environment import describe_environment, write_results
from failing_allocator import FACTS, MIB, Recorded, counters, snapshot
from forks import in_a_fork

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.optimizer_hooks import _AFTER, _BEFORE
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.session.session import Session

WARM, BLOCKS, BLOCK_STEPS = 300, 250, 10
LIVE_BLOCKS, BLOCK_BYTES = 100_000, 4096
ERRORS = 9


Training = Callable[[int], None]
Hooks = list[tuple[dict[int, Any], dict[int, Any]]]


def training() -> Training:
    """Return a function that trains a tiny model for a number of steps."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()

    return train


def cpu_us(train: Training) -> float:
    """Return the CPU time of a step, in µs, of one block of steps."""
    started_ns = time.thread_time_ns()
    train(BLOCK_STEPS)
    return (time.thread_time_ns() - started_ns) / 1000 / BLOCK_STEPS


def taken_out() -> Hooks:
    """Take the hooks of optimizer steps out of torch, and return them."""
    found = [(hooks, dict(hooks)) for hooks in (_BEFORE, _AFTER)]
    for hooks, _ in found:
        hooks.clear()
    return found


def more_us(train: Training) -> dict[str, Any]:
    """Return the CPU time of a step without the flight recorder, and how much more it is with it, in µs.

    Both are 10th percentiles of the blocks: what else runs on the machine only adds to a block.
    """
    with_it, without = [], []
    for _ in range(BLOCKS):
        with_it.append(cpu_us(train))
        found = taken_out()
        without.append(cpu_us(train))
        for hooks, before in found:
            hooks.update(before)
    quiet, quiet_without = (statistics.quantiles(values, n=10)[0] for values in (with_it, without))
    return {"without": quiet_without, "more": quiet - quiet_without}


def nothing(*_arguments: Any) -> None:
    """Stand for a part that is left out."""


def step_us(directory: Path) -> dict[str, Any]:
    """Return the cost of a step in a process of its own, whole and with some parts left out."""
    run = directory / f"{time.time_ns()}.ledger"
    (run / "rank-0").mkdir(parents=True)
    settings = RecordSettings(run, stacks=True, devices="cpu", flight_recorder=True)
    session = Session(settings, rank_directory=lambda: run / "rank-0", from_outside=True, begins_late=False)
    session.start()
    train = training()
    train(WARM)
    flight = session.flight
    assert flight is not None, "the flight recorder is off"
    assert flight.is_alone, "the recorded steps have not ended"
    whole = more_us(train)
    with mock.patch.object(flight._counters, "read", nothing):
        without_counters = more_us(train)
    with mock.patch.object(flight, "step_ended", nothing):
        without_flight = more_us(train)
    return {"whole": whole, "without_counters": without_counters, "without_flight": without_flight}


def error_ms() -> dict[str, float]:
    """Return CPU time and wall time in ms of an error with many live blocks, until all is written."""
    taken = snapshot([BLOCK_BYTES] * LIVE_BLOCKS, [])
    live_bytes = LIVE_BLOCKS * BLOCK_BYTES
    allocator: dict[str, Any] = {
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
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    errors = [error_ms() for _ in range(ERRORS)]
    with tempfile.TemporaryDirectory() as directory:
        rounds = [in_a_fork(lambda: step_us(Path(directory))) for _ in range(arguments.rounds)]
    of_round = {name: summary([one[name]["more"] for one in rounds]) for name in rounds[0]}
    whole, counters, flight = (of_round[name]["median"] for name in ("whole", "without_counters", "without_flight"))
    results = {
        "step_us": statistics.median(one["whole"]["without"] for one in rounds),
        "more_us": whole,
        "parts_us": {"counters": whole - counters, "other_recording": counters - flight, "counting_steps": flight},
        "rounds": of_round,
        "blocks": BLOCKS,
        "error_of_100000_blocks": {name: summary([one[name] for one in errors]) for name in ("cpu_ms", "wall_ms")},
    }
    print(f"step: {results['step_us']:.0f} us, +{whole:.1f} us: {results['parts_us']}")
    print(f"error: {results['error_of_100000_blocks']['cpu_ms']['median']:.0f} ms of CPU time")
    write_results(arguments.out, {"environment": describe_environment("cpu"), **results})


if __name__ == "__main__":
    main()
