"""Measures the cost of the flight recorder: blocks of steps with it and without it, in turn.

With it means, as after the measurements of ``gpuledger run``: counters are read and stored at every step, stacks of
some allocations are taken, and the allocator keeps its last events (the ring) where the recorder decides so. In other
blocks there is the ring alone, in all steps. From these and the number of allocations comes the time of an event
inside a training. A round has one block of each kind, in random order; a figure is the median of the rounds.

``cpu_ratio`` compares the process's CPU time until the last step of a block was launched: other work of the host does
not change it as much as the wall time. Also measures the host memory that the recorder uses. Ends within 320 s.

With ``--only NAME``, one model is measured for three times as long.

Usage: python bench/time/flight_recorder.py --out bench/time/results/h200/flight_recorder.json [--only NAME]
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import describe_environment, write_results
from models import EIGHT, MODELS
from one_by_one import names_in_time, out_and_only

from gpuledger.collect.adapter import frames, torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.flight.census import Census
from gpuledger.collect.flight.failures import Failures
from gpuledger.collect.flight.last_events import EVENT_NS, RING_ENTRIES, LastEvents
from gpuledger.collect.flight.late_stacks import LateStacks
from gpuledger.collect.flight.stack_budget import FIRST_NS
from gpuledger.collect.flight.step_counters import HOST_FRAC, CudaCounters, StepCounters, held_bytes
from gpuledger.collect.passes.outcomes import LaterMeasurement

BLOCK_S = 0.08
EACH_S, ALONE_S = 33.0, 100.0
"""Seconds for each model, and for one that is measured alone."""
FILL_S = 4.0
"""Longest time of a model until the ring is full."""
NOTHING, RING, RECORDER = KINDS = ("nothing", "ring", "recorder")


class Recorder:
    """The flight recorder's parts that take time of a step, over several blocks. Its time stands still between them.

    The time that it may spend at once in the beginning is taken away: it is measured as in a long training.
    """

    def __init__(self, counters: StepCounters, directory: Path) -> None:
        self.recorded_ns = 0
        self._from_ns: int | None = time.perf_counter_ns()
        self._counters = counters
        journal = RankJournal(lambda: directory, [])
        guard = Guard(_raise)
        self.late = LateStacks(guard, RING_ENTRIES, counters.allocations, self._now_ns)
        failures = Failures(journal, ModuleRegistry(), StackTable())
        self._events = LastEvents(journal, failures, counters, guard, self.late)
        counters.read(0, time.time_ns())  # what was allocated before has no stacks
        self._events.keep(LaterMeasurement.NOTHING)
        self.late.budget.spend(FIRST_NS)
        self._begun_ns = self.late.budget.spent_ns
        self.keeps_ring = True

    def _now_ns(self) -> int:
        return self.recorded_ns + (0 if self._from_ns is None else time.perf_counter_ns() - self._from_ns)

    def begin(self) -> None:
        """Begin a block: the ring is on again if it was, and stacks are taken from the next step on."""
        self._from_ns = time.perf_counter_ns()
        if self.keeps_ring:
            torch_private.start_ring(RING_ENTRIES)
        self.late.begin(keeps_events=self.keeps_ring)

    def end(self) -> None:
        """End a block."""
        self.late.pause()
        self.late.take_out()
        self.keeps_ring = torch_private.ring_is_on()
        torch_private.stop_ring()
        self.recorded_ns, self._from_ns = self._now_ns(), None

    def step_ended(self, step: int) -> None:
        """Do what the flight recorder does at the end of a step."""
        end_ns = time.time_ns()
        self._counters.read(step, end_ns)
        self._events.step_ended(end_ns)

    @property
    def spent_frac(self) -> float:
        """The share of the blocks' time that the stacks have taken by their own count."""
        return (self.late.budget.spent_ns - self._begun_ns) / max(self.recorded_ns, 1)


def _raise(error: BaseException) -> None:
    raise error


def steps_of(workload: Any, count: int, recorder: Recorder | None = None) -> tuple[float, float]:
    """Return the seconds of ``count`` steps, and those of the CPU to launch them."""
    torch.cuda.synchronize()
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    for step in range(count):
        workload.train(workload.make_batch())
        if recorder is not None:
            recorder.step_ended(step)
    cpu_s = time.process_time() - started_cpu_s
    torch.cuda.synchronize()
    return time.perf_counter() - started_s, cpu_s


def block_of(kind: str, workload: Any, count: int, recorder: Recorder) -> tuple[float, float]:
    """Return the seconds of a block and those of the CPU. Two steps before it bring the caches to what it needs."""
    if kind == RING:
        torch_private.start_ring(RING_ENTRIES)
    if kind == RECORDER:
        recorder.begin()
    own = recorder if kind == RECORDER else None
    steps_of(workload, 2, own)
    found = steps_of(workload, count, own)
    if kind == RING:
        torch_private.stop_ring()
    if kind == RECORDER:
        recorder.end()
    return found


def allocations() -> int:
    """Return the number of allocations since the process started."""
    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


def measure(name: str, directory: Path, each_s: float) -> dict[str, Any]:
    """Return the ratios of one model's blocks, and host memory."""
    until_s = time.perf_counter() + each_s
    workload = MODELS[name].build("cuda", small=False, batch_size=0)
    one_s = min(steps_of(workload, 3)[0] / 3 for _ in range(3))
    count = max(int(BLOCK_S / one_s), 2)
    before = allocations()
    steps_of(workload, 2)
    events = allocations() - before  # an allocation and its free, in each of two steps
    recorder = Recorder(StepCounters(CudaCounters(torch.cuda.device_count()), host_frac=HOST_FRAC), directory)
    host_before = held_bytes()
    fill_ring(workload, recorder)
    recorder.end()
    order, rounds = list(KINDS), []
    while time.perf_counter() < until_s or len(rounds) < 3:
        random.shuffle(order)
        rounds.append({kind: block_of(kind, workload, count, recorder) for kind in order})
    recorder.begin()
    fill_ring(workload, recorder)
    hosts = []
    for _ in range(3):  # host memory is flat once the ring is full
        steps_of(workload, count, recorder)
        hosts.append(held_bytes())
    started_s = time.perf_counter()
    kept = [event for trace in torch_private.full_snapshot()["device_traces"] for event in trace]
    snapshot_s = time.perf_counter() - started_s
    recorder.end()
    bare_s = statistics.median(one[NOTHING][0] for one in rounds) / count
    of = {kind: [[one[kind][at] / one[NOTHING][at] for one in rounds] for at in (0, 1)] for kind in (RING, RECORDER)}
    more_s = (statistics.median(of[RING][0]) - 1) * bare_s
    return {
        "step_s": bare_s,
        "ratio": statistics.median(of[RECORDER][0]),
        "ratios": of[RECORDER][0],
        "cpu_ratio": statistics.median(of[RECORDER][1]),
        "cpu_ratios": of[RECORDER][1],
        "ring": {
            "ratio": statistics.median(of[RING][0]),
            "ratios": of[RING][0],
            "cpu_ratio": statistics.median(of[RING][1]),
            "events_a_step": events,
            "event_ns": more_s * 1e9 / events,
            "is_kept": recorder.keeps_ring,
        },
        "stacks": {
            "taken": recorder.late.stacks,
            "whole_steps": recorder.late.whole_steps,
            "spent_frac": recorder.spent_frac,
            "one_ns": frames.stack_ns(),
        },
        "assumed_event_ns": EVENT_NS,
        "host_before_bytes": host_before,
        "host_bytes": hosts,
        "events": len(kept),
        "snapshot_s": snapshot_s,
        "census_ns": Census(0).took_ns,
        "counters_ns": _counters_ns(),
    }


def fill_ring(workload: Any, recorder: Recorder) -> None:
    """Train until the ring, where it is kept, has dropped events; or for a while."""
    until_s = time.perf_counter() + FILL_S
    first, step = allocations(), 0
    while time.perf_counter() < until_s and 2 * (allocations() - first) <= RING_ENTRIES:
        workload.train(workload.make_batch())
        recorder.step_ended(step)
        step += 1
        if step > 20 and not torch_private.ring_is_on():
            return


def _counters_ns() -> float:
    counters = StepCounters(CudaCounters(torch.cuda.device_count()), host_frac=HOST_FRAC)
    started_ns = time.perf_counter_ns()
    for step in range(1000):
        counters.read(step, time.time_ns())
    return (time.perf_counter_ns() - started_ns) / 1000


def main() -> None:
    """Measure every model and print a line for each."""
    arguments = out_and_only(__doc__, "model")
    results: dict[str, Any] = {}
    for name in names_in_time(EIGHT, arguments.only, 280):
        with tempfile.TemporaryDirectory() as directory:
            found = results[name] = measure(name, Path(directory), ALONE_S if arguments.only else EACH_S)
        ring = found["ring"]
        ratios = f"x {found['ratio']:.4f}, CPU x {found['cpu_ratio']:.4f}, ring x {ring['ratio']:.4f}"
        kept = f"{ring['event_ns']:.0f} ns an event, ring kept: {ring['is_kept']}"
        print(name, f"{found['step_s'] * 1e3:.2f} ms, {ratios}, {kept}, n = {len(found['ratios'])}", flush=True)
        write_results(arguments.out, {"models": results})
        gc.collect()
        torch.cuda.empty_cache()
    write_results(arguments.out, {"environment": describe_environment("cuda"), "models": results})


if __name__ == "__main__":
    main()
