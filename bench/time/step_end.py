"""Measures what gpuledger does at the end of a step after the measurements, one function at a time.

Each model trains under ``gpuledger.record`` with the flight recorder. After the recorded and profiled steps and
``SETTLE_S`` more, the functions in PARTS are timed with the recording's own calls of them. A part includes the parts
that it calls, and the time to measure these, about a microsecond each. ``hooks`` is all that a step of the optimizer
calls. ``late stacks, call`` comes at the next call of a module. On a machine with a GPU, the caches are cold then, so
these times are several times those in a loop.

Usage: python bench/time/step_end.py --out bench/time/results/h200/step_end.json [--models neumf,gpt2,vgg16]
           [--seconds 5] [--device cuda] [--small]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from models import MODELS

import gpuledger

COLLECT = "gpuledger.collect."
FLIGHT = f"{COLLECT}flight."
PARTS = {
    "hooks": f"{COLLECT}adapter.optimizer_hooks.OptimizerHook._call",
    "flight recorder": f"{FLIGHT}flight_recorder.FlightRecorder.step_ended",
    "counters": f"{FLIGHT}step_counters.StepCounters.read",
    "torch: counters": f"{COLLECT}adapter.torch_private.memory_stats",
    "host memory": f"{FLIGHT}step_counters.held_bytes",
    "last events": f"{FLIGHT}last_events.LastEvents.step_ended",
    "late stacks": f"{FLIGHT}late_stacks.LateStacks.step_ended",
    "late stacks, call": f"{FLIGHT}late_stacks.LateStacks._called",
    "torch: change history": f"{COLLECT}adapter.torch_private._change_ring",
}
WARM_UP_STEPS, MEASURED_STEPS, SETTLE_S = 6, 8, 2.0


@contextmanager
def timed(times_ns: dict[str, list[int]]) -> Iterator[None]:
    """Append the time of each call of each part to its list, in ns."""
    with ExitStack() as patches:
        for part, place in PARTS.items():
            owner, _, name = place.rpartition(".")
            function = getattr(_found(owner), name)

            def measured(*args: Any, function: Any = function, part: str = part, **kwargs: Any) -> Any:
                started_ns = time.perf_counter_ns()
                try:
                    return function(*args, **kwargs)
                finally:
                    times_ns[part].append(time.perf_counter_ns() - started_ns)

            patches.enter_context(mock.patch(place, measured))
        yield


def _found(name: str) -> Any:
    """Return a module, or a class in one, by its full name."""
    module, _, last = name.rpartition(".")
    __import__(name if last.islower() else module)
    return sys.modules[name] if last.islower() else getattr(sys.modules[module], last)


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return the time of a step of a model in ms, and for each part the time per step and per call in µs."""
    workload = MODELS[name].build(given.device, small=given.small, batch_size=0)
    wait: Callable[[], object] = torch.cuda.synchronize if given.device.startswith("cuda") else (lambda: None)

    def train(seconds: float) -> int:
        steps, until_s = 0, time.perf_counter() + seconds
        while time.perf_counter() < until_s:
            workload.train(workload.make_batch())
            steps += 1
        wait()
        return steps

    for _ in range(WARM_UP_STEPS):
        workload.train(workload.make_batch())
    times_ns: dict[str, list[int]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory, timed(times_ns):
        recording = gpuledger.record(out=Path(directory) / "run", steps=(1, 1), passes="memory,time")
        recording.flies = True
        with recording:
            for _ in range(MEASURED_STEPS):
                workload.train(workload.make_batch())
            train(SETTLE_S)
            times_ns.clear()
            started_s = time.perf_counter()
            steps = train(given.seconds)
            step_ms = (time.perf_counter() - started_s) / steps * 1e3
            found = {part: list(values) for part, values in times_ns.items()}
    parts = {
        part: {
            "of_a_step_us": sum(values) / steps / 1e3,
            "median_us": statistics.median(values) / 1e3,
            "calls_a_step": len(values) / steps,
        }
        for part, values in found.items()
    }
    return {"steps": steps, "step_ms": step_ms, "parts": parts}


def main() -> None:
    """Measure the models and write the result after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default="neumf,gpt2,vgg16")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.device_count() else "cpu")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    environment, models = describe_environment(given.device), {}
    for name in given.models.split(","):
        models[name] = measure(name, given)
        of_a_step = {part: round(one["of_a_step_us"], 1) for part, one in models[name]["parts"].items()}
        print(f"{name}: {models[name]['step_ms']:.2f} ms, µs of a step: {of_a_step}", flush=True)
        write_results(given.out, {"environment": environment, "small": given.small, "models": models})


if __name__ == "__main__":
    main()
