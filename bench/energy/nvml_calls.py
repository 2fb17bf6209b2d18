"""Measures what NVML's calls cost, and how often their values change.

Usage: python bench/energy/nvml_calls.py --out bench/energy/results/h200/nvml_calls.json   (50 s)

Each call alone, idle and beside a busy GPU: by the clock and in processor time. When the energy counter ticks and when
the power moves, each read alone and the counter read some time after a move of the power. A loop that waits and reads
at 200 Hz: what it takes of a core with nothing to read, with the bytes alone, and with the sensors as well.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

from gpuledger.cards.nvml import NvmlCard

LOAD = """
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("ready", flush=True)
while True:
    for _ in range(20):
        torch.mm(a, a)
    torch.cuda.synchronize()
"""
RATE_HZ, SENSOR_HZ = 200, 10
AFTER_MS = (5.0, 15.0, 30.0, 45.0, 60.0, 75.0)


@dataclass(frozen=True)
class Read:
    """One read of the counter, so long after the power was seen to move."""

    after_ms: float
    moved_ns: int
    energy_mj: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200, help="Reads of each call.")
    parser.add_argument("--seconds", type=float, default=3.0, help="How long counter and power are read alone.")
    parser.add_argument("--moves", type=int, default=101, help="Moves of the power after which the counter is read.")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    pynvml.nvmlInit()
    card = NvmlCard(pynvml, 0)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def power() -> int:
        return int(pynvml.nvmlDeviceGetPowerUsage(handle))

    results: dict[str, Any] = {"environment": describe_environment("cuda")}
    for state in ("idle", "busy"):
        load = _start_load() if state == "busy" and torch.cuda.is_available() else None
        try:
            results[state] = {
                "calls": {name: time_call(call, args.calls) for name, call in _calls(card, power).items()},
                "counter_alone": tick_times(card.read_energy_mj, args.seconds),
                "power_alone": tick_times(power, args.seconds),
                "counter_after_power": compare_ticks(card, power, args.moves),
                "counter_alone_again": tick_times(card.read_energy_mj, args.seconds),
                "loops": {name: loop_cost(reads, 4.0) for name, reads in _loops(card).items()},
            }
        finally:
            if load is not None:
                load.kill()
                load.wait()
        write_results(args.out, results)
    print(f"wrote {args.out}")


def _start_load() -> subprocess.Popen[str]:
    load = subprocess.Popen([sys.executable, "-c", LOAD], stdout=subprocess.PIPE, text=True)
    assert load.stdout is not None
    load.stdout.readline()
    time.sleep(3)
    return load


def _calls(card: NvmlCard, power: Callable[[], int]) -> dict[str, Callable[[], Any]]:
    return {
        "memory": card.read_memory,
        "energy_counter": card.read_energy_mj,
        "power": power,
        "sensors": card.read_sensors,
        "processes": card.read_processes,
        "throttled_ns": card.read_throttled_ns,
    }


def _loops(card: NvmlCard) -> dict[str, tuple[Callable[[], Any] | None, Callable[[], Any] | None]]:
    """Return what is read in each round, and what ten times a second."""
    return {
        "empty": (None, None),
        "memory": (card.read_memory, None),
        "memory_and_sensors": (card.read_memory, card.read_sensors),
    }


def time_call(call: Callable[[], Any], count: int) -> dict[str, float]:
    """Return microseconds of one call, 2 ms apart, by the clock and of this thread's processor time."""
    wall_us, cpu_us = [], []
    for _ in range(count):
        began_ns, began_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        call()
        cpu_us.append((time.thread_time_ns() - began_cpu_ns) / 1e3)
        wall_us.append((time.perf_counter_ns() - began_ns) / 1e3)
        time.sleep(0.002)
    return {
        "wall_us_median": statistics.median(wall_us),
        "wall_us_p99": sorted(wall_us)[int(0.99 * count)],
        "cpu_us_median": statistics.median(cpu_us),
    }


def compare_ticks(card: NvmlCard, power: Callable[[], int], count: int) -> dict[str, Any]:
    """Return how many ms of energy the counter shows more than at the power's move, by how long after it is read.

    Reads right at a move and reads some time after one take turns; what a later read shows is held against the line
    between its neighbours. 0: no tick lies between the move and the read; about 100: one does.
    """
    waits_ms = (AFTER_MS[turn // 2 % len(AFTER_MS)] if turn % 2 else 0.0 for turn in range(count))
    reads = [_read_after_move(power, card.read_energy_mj, wait_ms) for wait_ms in waits_ms]
    more_ms: dict[float, list[float]] = {}
    for before, read, after in zip(reads[:-2:2], reads[1:-1:2], reads[2::2], strict=True):
        moved_ms = (after.moved_ns - before.moved_ns) / 1e6
        share = (read.moved_ns - before.moved_ns) / (after.moved_ns - before.moved_ns)
        line_mj = before.energy_mj + share * (after.energy_mj - before.energy_mj)
        power_mj_ms = (after.energy_mj - before.energy_mj) / moved_ms
        more_ms.setdefault(read.after_ms, []).append((read.energy_mj - line_mj) / power_mj_ms)
    gaps_ms = [(late.moved_ns - early.moved_ns) / 1e6 for early, late in itertools.pairwise(reads)]
    return {
        "moves": count,
        "move_gap_ms": [round(gap_ms, 1) for gap_ms in sorted(gaps_ms)],
        "more_ms_by_read_after_ms": {
            str(after_ms): [round(one, 1) for one in sorted(found)] for after_ms, found in sorted(more_ms.items())
        },
    }


def _read_after_move(power: Callable[[], int], counter: Callable[[], int | None], after_ms: float) -> Read:
    """Wait for the power to move, then so long, then read the counter."""
    known = power()
    looked_ns = time.time_ns()
    while True:
        time.sleep(0.001)
        began_ns = time.time_ns()
        if power() != known:
            break
        looked_ns = began_ns
    moved_ns = (looked_ns + time.time_ns()) // 2
    time.sleep(after_ms / 1e3)
    return Read(after_ms, moved_ns, counter() or 0)


def tick_times(read: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """Return when something that is read all the time moved: ms between moves, and where they lie in 100 ms."""
    moves_ms, known = [], read()
    end_ns = time.time_ns() + int(seconds * 1e9)
    while time.time_ns() < end_ns:
        began_ns = time.time_ns()
        found = read()
        if found != known:
            moves_ms.append((began_ns + time.time_ns()) / 2e6)
            known = found
        time.sleep(0.0005)
    gaps_ms = [later - earlier for earlier, later in itertools.pairwise(moves_ms)]
    return {
        "moves": len(moves_ms),
        "gap_ms_median": statistics.median(gaps_ms) if gaps_ms else None,
        "phase_ms": [round(move_ms % 100, 1) for move_ms in moves_ms],
    }


def loop_cost(reads: tuple[Callable[[], Any] | None, Callable[[], Any] | None], seconds: float) -> dict[str, float]:
    """Return the share of a core that waiting and reading at 200 Hz takes."""
    often, seldom = reads
    began_s, began_cpu_s, rounds = time.perf_counter(), time.process_time(), 0
    due_s = began_s
    while due_s < began_s + seconds:
        due_s += 1 / RATE_HZ
        time.sleep(max(due_s - time.perf_counter(), 0))
        if often is not None:
            often()
        if seldom is not None and rounds % (RATE_HZ // SENSOR_HZ) == 0:
            seldom()
        rounds += 1
    return {"core_frac": (time.process_time() - began_cpu_s) / (time.perf_counter() - began_s), "rounds": rounds}


if __name__ == "__main__":
    main()
