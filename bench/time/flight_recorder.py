"""Measures the cost of the flight recorder: blocks of steps with it and without it, in turn.

With it means: the allocator keeps its last events, stacks of some allocations are taken, and counters are read and
stored at every step. A block without the stacks precedes it: ``stacks`` compares the two. Also measures the host memory
that it uses. ``cpu_ratio`` compares the process's CPU time until the last step of a block was launched: other work of
the host does not change it as much as the wall time. Ends within 150 s.

Usage: python bench/time/flight_recorder.py --out bench/time/results/h200/flight_recorder.json
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import describe_environment, write_results
from models import EIGHT, MODELS
from one_by_one import names_in_time, out_and_only

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.flight.census import Census
from gpuledger.collect.flight.last_events import RING_ENTRIES
from gpuledger.collect.flight.late_stacks import LateStacks
from gpuledger.collect.flight.stack_budget import FIRST_NS
from gpuledger.collect.flight.step_counters import CudaCounters, StepCounters, held_bytes

BLOCK_S = 0.25
EACH_S = 10.0
FILL_S = 8.0
"""Longest time of a model until the ring is full."""


class Stacks:
    """What takes stacks in the flight recorder, over several blocks of steps. Its time stands still between them.

    The time that it may spend at once in the beginning is taken away: it is measured as in a long training.
    """

    def __init__(self, counters: StepCounters) -> None:
        self.recorded_ns = 0
        self._from_ns: int | None = None
        self.late = LateStacks(Guard(_raise), RING_ENTRIES, counters.allocations, self._now_ns)
        self.late.budget.spend(FIRST_NS)
        self._begun_ns = self.late.budget.spent_ns
        self._counters = counters

    def _now_ns(self) -> int:
        return self.recorded_ns + (0 if self._from_ns is None else time.perf_counter_ns() - self._from_ns)

    def begin(self) -> None:
        """Begin a block, right after the ring was started."""
        self._from_ns = time.perf_counter_ns()
        self.late.begin()

    def end(self) -> None:
        """End a block."""
        self.late.take_out()
        self.recorded_ns, self._from_ns = self._now_ns(), None

    def step_ended(self) -> None:
        """Decide of which allocations stacks are taken next, from the counters that were just read."""
        self.late.step_ended(self._counters.latest)

    @property
    def spent_frac(self) -> float:
        """The share of the blocks' time that the stacks have taken by their own count."""
        return (self.late.budget.spent_ns - self._begun_ns) / max(self.recorded_ns, 1)


def _raise(error: BaseException) -> None:
    raise error


def steps_of(
    train: Any, make_batch: Any, count: int, counters: StepCounters | None, stacks: Stacks | None = None
) -> tuple[float, float]:
    """Return the seconds of ``count`` steps, and those of the CPU to launch them.

    Args:
        train: Trains one step.
        make_batch: Returns what it needs.
        count: Number of steps.
        counters: Read after each step.
        stacks: Asked for stacks after each step.
    """
    torch.cuda.synchronize()
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    for step in range(count):
        train(make_batch())
        if counters is not None:
            counters.read(step, time.time_ns())
        if stacks is not None:
            stacks.step_ended()
    cpu_s = time.process_time() - started_cpu_s
    torch.cuda.synchronize()
    return time.perf_counter() - started_s, cpu_s


def measure(name: str) -> dict[str, Any]:
    """Return the ratios of one model's blocks, and host memory."""
    until_s = time.perf_counter() + EACH_S
    workload = MODELS[name].build("cuda", small=False, batch_size=0)
    train, make_batch = workload.train, workload.make_batch
    one_s = min(steps_of(train, make_batch, 3, None)[0] / 3 for _ in range(3))
    count = max(int(BLOCK_S / one_s), 3)
    counters = StepCounters(CudaCounters(torch.cuda.device_count()))
    stacks = Stacks(counters)
    ratios, cpu_ratios, bare_s = [], [], []
    more, cpu_more = [], []
    host_before = held_bytes()
    while time.perf_counter() < until_s or len(ratios) < 3:
        first, first_cpu_s = steps_of(train, make_batch, count, None)
        torch_private.start_ring(RING_ENTRIES)
        steps_of(train, make_batch, 1, counters)
        events, events_cpu_s = steps_of(train, make_batch, count, counters)
        stacks.begin()
        steps_of(train, make_batch, 1, counters, stacks)
        recorded, cpu_s = steps_of(train, make_batch, count, counters, stacks)
        stacks.end()
        torch_private.stop_history()
        steps_of(train, make_batch, 1, None)
        second, second_cpu_s = steps_of(train, make_batch, count, None)
        ratios.append(recorded / ((first + second) / 2))
        cpu_ratios.append(cpu_s / ((first_cpu_s + second_cpu_s) / 2))
        more.append(recorded / events)
        cpu_more.append(cpu_s / events_cpu_s)
        bare_s.append((first + second) / 2 / count)
    torch_private.start_ring(RING_ENTRIES)
    stacks.begin()
    fill_ring(workload, count, counters, stacks)
    hosts = []
    for _ in range(3):  # host memory is flat once the ring is full
        steps_of(train, make_batch, count, counters, stacks)
        hosts.append(held_bytes())
    stacks.end()
    started_s = time.perf_counter()
    kept = [event for trace in torch_private.full_snapshot()["device_traces"] for event in trace]
    snapshot_s = time.perf_counter() - started_s
    torch_private.stop_history()
    census = Census(0)
    return {
        "step_s": statistics.median(bare_s),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "cpu_ratio": statistics.median(cpu_ratios),
        "cpu_ratios": cpu_ratios,
        "stacks": {
            "ratio": statistics.median(more),
            "ratios": more,
            "cpu_ratio": statistics.median(cpu_more),
            "cpu_ratios": cpu_more,
            "taken": stacks.late.stacks,
            "whole_steps": stacks.late.whole_steps,
            "spent_frac": stacks.spent_frac,
            "one_ns": torch_private.stack_ns(),
            "kept_by_events": sum(bool(event.get("frames")) for event in kept),
        },
        "host_before_bytes": host_before,
        "host_bytes": hosts,
        "events": len(kept),
        "snapshot_s": snapshot_s,
        "census_ns": census.took_ns,
        "counters_ns": _counters_ns(),
    }


def fill_ring(workload: Any, count: int, counters: StepCounters, stacks: Stacks) -> None:
    """Train until the ring has dropped events, or for a while. Each allocation is three events."""
    until_s = time.perf_counter() + FILL_S
    first = torch.cuda.memory_stats()["allocation.all.allocated"]
    while time.perf_counter() < until_s:
        steps_of(workload.train, workload.make_batch, count, counters, stacks)
        if 3 * (torch.cuda.memory_stats()["allocation.all.allocated"] - first) > RING_ENTRIES:
            return


def _counters_ns() -> float:
    counters = StepCounters(CudaCounters(torch.cuda.device_count()))
    started_ns = time.perf_counter_ns()
    for step in range(1000):
        counters.read(step, time.time_ns())
    return (time.perf_counter_ns() - started_ns) / 1000


def main() -> None:
    """Measure every model and print a line for each."""
    arguments = out_and_only(__doc__, "model")
    results: dict[str, Any] = {}
    for name in names_in_time(EIGHT, arguments.only, 120):
        found = results[name] = measure(name)
        ratios = f"x {found['ratio']:.4f}, CPU x {found['cpu_ratio']:.4f}, of stacks x {found['stacks']['ratio']:.4f}"
        print(name, f"{found['step_s'] * 1e3:.2f} ms, {ratios}, {found['events']} events", flush=True)
        write_results(arguments.out, {"models": results})
        gc.collect()
        torch.cuda.empty_cache()
    write_results(arguments.out, {"environment": describe_environment("cuda"), "models": results})


if __name__ == "__main__":
    main()
