"""What NVML's calls cost and when what they show moves: the facts that the sampler and the energy windows rest on.

Usage: python bench/nvml_calls.py --out bench/results/h200/nvml_calls.json   (50 s)

Each call alone, idle and beside a busy card: by the clock and in processor time. The card's power and its energy
counter, read in turn: how far each tick of the counter is from the nearest move of the power. A loop that waits and
reads at 200 Hz: what it takes of a core with nothing to read, with the bytes alone, and with the sensors as well.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import torch
from environment import describe_environment, write_results

from gpuledger.collect.sensors import CardSensors

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200, help="Reads of each call.")
    parser.add_argument("--seconds", type=float, default=8.0, help="How long counter and power are read in turn.")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    pynvml.nvmlInit()
    card = CardSensors(pynvml, 0)
    results: dict[str, Any] = {"environment": describe_environment("cuda")}
    for state in ("idle", "busy"):
        load = _start_load() if state == "busy" and torch.cuda.is_available() else None
        try:
            results[state] = {
                "calls": {name: time_call(call, args.calls) for name, call in _calls(card).items()},
                "ticks": compare_ticks(card, args.seconds),
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


def _calls(card: CardSensors) -> dict[str, Callable[[], Any]]:
    return {
        "memory": card.read_memory,
        "energy_counter": card.read_energy_mj,
        "power": card.read_beat,
        "sensors": card.read_sensors,
        "processes": card.read_processes,
        "throttled_ns": card.read_throttled_ns,
    }


def _loops(card: CardSensors) -> dict[str, tuple[Callable[[], Any] | None, Callable[[], Any] | None]]:
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


def compare_ticks(card: CardSensors, seconds: float) -> dict[str, Any]:
    """Return how the counter's ticks and the power's moves lie to each other, both read in turn."""
    ticks, moves = [], []
    energy_mj, power_mw = card.read_energy_mj(), card.read_beat()
    end_ns = time.time_ns() + int(seconds * 1e9)
    while time.time_ns() < end_ns:
        began_ns = time.time_ns()
        counted = card.read_energy_mj()
        between_ns = time.time_ns()
        beat = card.read_beat()
        ended_ns = time.time_ns()
        if counted != energy_mj:
            ticks.append((began_ns + between_ns) / 2e6)
            energy_mj = counted
        if beat != power_mw:
            moves.append((between_ns + ended_ns) / 2e6)
            power_mw = beat
        time.sleep(0.001)
    off_ms = [min(abs(tick - move) for move in moves) for tick in ticks] if moves else []
    gaps_ms = [later - earlier for earlier, later in itertools.pairwise(ticks)]
    return {
        "ticks": len(ticks),
        "moves": len(moves),
        "tick_gap_ms_median": statistics.median(gaps_ms) if gaps_ms else None,
        "ticks_with_a_move_within_10_ms": sum(off <= 10 for off in off_ms),
        "off_ms_median": statistics.median(off_ms) if off_ms else None,
        "off_ms_most": max(off_ms, default=None),
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
