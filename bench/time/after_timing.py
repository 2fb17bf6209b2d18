"""Compares steps after the timing measurement with steps before it, to find a slow-down that it leaves behind.

Each model trains in two processes that take turns: one is not recorded, and the other is recorded between two halves
(one recorded step and three profiled ones). In a turn, each runs a block of steps between two synchronizations of the
GPU, on the same two cores, while the other one waits. So what slows the machine or a core for longer than a turn slows
both. A half is many turns; its figure is the median of the blocks' ratios, recorded over bare. The figure of a model is
the ratio of its halves, so that a constant difference of the processes cancels. A half ends when its figure is known to
0.1 %, or after ``--half-s`` seconds.

``half_interval`` is half of the 95 % interval of the figure, from the order of the ratios. ``host`` is the figure of
the CPU time of the training thread.

Variants separate the causes of a slow-down. ``timing``: the recording is closed before the second half. ``memory``: the
same without the timing measurement. ``tables``: nothing is recorded, and the modules are loaded that build the tables.
``open``: the recording stays open, as it does without a flight recorder until the program ends. ``flight``: it stays
open with the flight recorder, as under ``gpuledger run``.

Usage: python bench/time/after_timing.py --out bench/time/results/h200/after_timing.json [--half-s 12] [--limit-s 600]
           [--models neumf,gpt2] [--variants timing,memory,tables,open,flight] [--small]
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
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
from forks import Fork, in_a_fork
from models import EIGHT, MODELS

import gpuledger
from gpuledger.services.recording import Recording

BARE = "bare"
VARIANTS = ("timing", "memory", "tables", "open", "flight")
WARM_UP_STEPS = 10
STEPS_BETWEEN = 6
BLOCK_S = 0.05
CORES = 2
LEAST_TURNS = 25
KNOWN_FRAC = 0.001
TARGET = 0.005


class Training:
    """One model's training, which answers what is asked of its process."""

    def __init__(self, model: str, variant: str, device: str, small: bool) -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
        torch.manual_seed(0)
        workload = MODELS[model].build(device, small=small, batch_size=0)
        batch = workload.make_batch()
        self._step: Callable[[], None] = lambda: workload.train(batch)
        self._wait: Callable[[], object] = torch.cuda.synchronize if device.startswith("cuda") else (lambda: None)
        self._variant = variant
        self._directory = tempfile.TemporaryDirectory()
        self._out = Path(self._directory.name) / "run.ledger"
        self._open: Recording | None = None
        for _ in range(WARM_UP_STEPS):
            self._step()
        self._wait()

    def answer(self, request: Any) -> Any:
        """Run a block of so many steps and return its seconds and CPU seconds, go between the halves, or end."""
        if request == "between":
            return self._between()
        if request == "end":
            return self._end()
        started_s, used_s = time.perf_counter(), time.thread_time()
        for _ in range(request):
            self._step()
        used_s = time.thread_time() - used_s
        self._wait()
        return time.perf_counter() - started_s, used_s

    def _between(self) -> None:
        """Take the steps between the halves."""
        recording = None
        if self._variant not in (BARE, "tables"):
            passes = "memory" if self._variant == "memory" else "memory,time"
            recording = gpuledger.record(out=self._out, steps=(1, 1), passes=passes)
            recording.flies = self._variant == "flight"
            recording.__enter__()
        elif self._variant == "tables":
            _load_tables()
        for _ in range(STEPS_BETWEEN):
            self._step()
        if self._variant in ("open", "flight"):
            self._open = recording
        elif recording is not None:
            recording.__exit__(None, None, None)

    def _end(self) -> Any:
        """Close what is open, and return the steps that were profiled."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
        profiled = gpuledger.load(self._out).rank().manifest.time_steps if self._out.exists() else None
        self._directory.cleanup()
        return profiled


def _load_tables() -> None:
    """Load what builds and reads the tables of a recording."""
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401

    import gpuledger.analyze.view.view
    import gpuledger.services.runs  # noqa: F401


def half_interval(logs: list[float]) -> float:
    """Return half of the 95 % interval of the median, from the order of the numbers (binomial, normal for many)."""
    ordered, reach = sorted(logs), 0.98 * math.sqrt(len(logs))
    low = max(math.floor(len(logs) / 2 - reach), 0)
    high = min(math.ceil(len(logs) / 2 + reach), len(logs) - 1)
    return (ordered[high] - ordered[low]) / 2


def half(bare: Fork, other: Fork, steps: int, length_s: float) -> dict[str, Any]:
    """Return the logarithms of the ratios of blocks that take turns, in time and in CPU time."""
    until_s = time.perf_counter() + length_s
    logs: list[float] = []
    host: list[float] = []
    step_s: list[float] = []
    while len(logs) < LEAST_TURNS or (half_interval(logs) > KNOWN_FRAC and time.perf_counter() < until_s):
        pair = (bare, other) if len(logs) % 2 == 0 else (other, bare)
        told = {one is bare: one.ask(steps) for one in pair}
        logs.append(math.log(told[False][0] / told[True][0]))
        host.append(math.log(told[False][1] / told[True][1]))
        step_s.append(told[True][0] / steps)
    return {"logs": logs, "host": host, "step_s": statistics.median(step_s)}


def measure(given: argparse.Namespace, model: str, variant: str) -> dict[str, Any]:
    """Return the figures of one model and variant."""
    with (
        Fork(lambda: Training(model, BARE, given.device, given.small).answer) as bare,
        Fork(lambda: Training(model, variant, given.device, given.small).answer) as other,
    ):
        bare.ask(1), other.ask(1)
        steps = max(1, round(BLOCK_S / min(bare.ask(1)[0], other.ask(1)[0])))
        before = half(bare, other, steps, given.half_s)
        bare.ask("between"), other.ask("between")
        after = half(bare, other, steps, given.half_s)
        bare.ask("end")
        profiled = other.ask("end")
    figures = {
        name: math.exp(statistics.median(after[of]) - statistics.median(before[of]))
        for name, of in (("slowdown", "logs"), ("host", "host"))
    }
    reach = math.hypot(half_interval(before["logs"]), half_interval(after["logs"]))
    turns = {"before": len(before["logs"]), "after": len(after["logs"])}
    found = {**figures, "half_interval": reach, "turns": turns, "steps_a_block": steps, "step_s": before["step_s"]}
    return found | {"profiled": profiled, "ratios": [round(math.exp(one), 5) for one in after["logs"]]}


def main() -> None:
    """Measure the models and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=",".join(EIGHT))
    parser.add_argument("--half-s", type=float, default=12.0)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no model after so many seconds")
    parser.add_argument("--variants", default=VARIANTS[0], help=f"one or more of {','.join(VARIANTS)}")
    parser.add_argument("--device", default="cuda" if torch.cuda.device_count() else "cpu")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    unknown = set(given.variants.split(",")) - set(VARIANTS)
    if unknown:
        parser.error(f"unknown variants: {', '.join(sorted(unknown))}")
    until_s = time.perf_counter() + given.limit_s
    environment = in_a_fork(lambda: describe_environment(given.device))  # it uses the GPU, which forbids later forks
    for package in {MODELS[model].needs for model in given.models.split(",")} - {""}:
        importlib.import_module(package)  # once, before the forks
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for model in given.models.split(","):
        for variant in given.variants.split(","):
            if time.perf_counter() > until_s:
                continue
            found = rows.setdefault(model, {})[variant] = measure(given, model, variant)
            said = f"{found['slowdown']:.4f} ± {found['half_interval']:.4f}, host {found['host']:.4f}"
            print(model, variant, said, found["turns"], flush=True)
            about = {"half_s": given.half_s, "block_s": BLOCK_S, "small": given.small, "target": TARGET}
            write_results(given.out, {"environment": environment, **about, "models": rows})


if __name__ == "__main__":
    main()
