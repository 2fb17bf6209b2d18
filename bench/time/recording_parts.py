"""Measures the parts of a recording: the time in each of its functions, and of each step, on one training.

Each model trains in a process of its own: bare steps, recorded steps, profiled steps, and steps after these, each from
idle GPU to idle GPU. The functions in PARTS are timed with the recording's own calls of them; a part includes the parts
that it calls. ``collections`` is Python's garbage collector within the recorded and profiled steps.

``--models sharded:fsdp`` trains the model of bench/lib/sharded_models.py in the way ``fsdp``, as one of four ranks with
simulated collectives: one GPU is enough to see the time of the observers.

To compare with an older version, set PYTHONPATH to its ``src``. A part that a version does not have is left out.

Usage: python bench/time/recording_parts.py --out bench/time/results/h200/recording_parts.json
           [--models gpt2,resnet50] [--rounds 3] [--small] [--compiled]
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import subprocess
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
PARTS = {
    "open": f"{COLLECT}memory.window:MemoryWindow.open",
    "scan for live objects": f"{COLLECT}attribution.live_objects:LiveObjects._walk",
    "keep a step": f"{COLLECT}memory.pending_events:PendingEvents.keep_step",
    "torch: snapshot": f"{COLLECT}adapter.torch_private:full_snapshot",
    "torch: change history": f"{COLLECT}adapter.torch_private:start_history",
    "events into columns": f"{COLLECT}memory.cuda_history:CudaRecorder._note_events",
    "module call: enter": f"{COLLECT}attribution.modules:ModuleTracker._enter",
    "module call: leave": f"{COLLECT}attribution.modules:ModuleTracker._leave",
    "see gradients of all parameters": f"{COLLECT}attribution.tensor_observations:TensorObservations.see_gradients",
    "FSDP: see gathered weights": f"{COLLECT}sharding.fully_shard:FullyShardedGroups._see_gathered",
    "FSDP: see reduced gradients": f"{COLLECT}sharding.fully_shard:FullyShardedGroups._see_reduced",
    "FSDP: see freed weights": f"{COLLECT}sharding.fully_shard:FullyShardedGroups._see_resharded",
    "append to the journal": f"{COLLECT}attribution.rank_journal:RankJournal.append",
    "write a part of the journal": f"{COLLECT}attribution.rank_journal:RankJournal.write",
    "close": f"{COLLECT}memory.window:MemoryWindow.close",
    "begin timing": f"{COLLECT}passes.time_pass:TimePass.begin",
    "record only kernels": f"{COLLECT}passes.time_pass:TimePass.leave_out_operators",
    "end timing": f"{COLLECT}passes.time_pass:TimePass.end",
    "torch: stop the profiler": "torch.autograd.profiler:_disable_profiler",
    "wait for CUPTI to detach": f"{COLLECT}adapter.kineto:_see_cupti_off",
    "torch: list of Kineto's events": f"{COLLECT}adapter.kineto_events:events_of",
    "Kineto's events into columns": f"{COLLECT}passes.time_pass:TimePass._write",
}
"""Name of a part -> module and function."""

RANKS = 4
BARE_STEPS, RECORDED_STEPS, PROFILED_STEPS, LATER_STEPS = 8, 6, 3, 14


@contextmanager
def timed_parts() -> Iterator[dict[str, list[float]]]:
    """Time every call of the parts, in milliseconds."""
    found: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as patches:
        for name, place in PARTS.items():
            module_name, _, path = place.partition(":")
            owner: Any = importlib.import_module(module_name)
            *outer, function = path.split(".")
            for one in outer:
                owner = getattr(owner, one)
            if hasattr(owner, function):
                wrapped = _timed(getattr(owner, function), found[name])
                patches.enter_context(mock.patch.object(owner, function, wrapped))
        yield found


def _timed(function: Callable[..., Any], calls_ms: list[float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        started_s = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            calls_ms.append((time.perf_counter() - started_s) * 1e3)

    return timed


@contextmanager
def timed_collections() -> Iterator[list[tuple[int, float]]]:
    """Time Python's garbage collections: generation and milliseconds."""
    found: list[tuple[int, float]] = []
    started_s = [0.0]

    def seen(phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            started_s[0] = time.perf_counter()
        else:
            found.append((about["generation"], (time.perf_counter() - started_s[0]) * 1e3))

    gc.callbacks.append(seen)
    try:
        yield found
    finally:
        gc.callbacks.remove(seen)


def measure_round(step: Callable[[], float], out: Path) -> dict[str, Any]:
    """Return times of steps and parts of one recording."""
    bare_ms = [step() for _ in range(BARE_STEPS)]
    passes = f"memory,time:{PROFILED_STEPS}"
    recording = gpuledger.record(out=out, steps=(1, RECORDED_STEPS), passes=passes)
    with timed_parts() as parts, timed_collections() as collections, recording:
        steps_ms = [step() for _ in range(RECORDED_STEPS + PROFILED_STEPS)]
        inside = list(collections)
        later_ms = [step() for _ in range(LATER_STEPS)]
    return {
        "bare_ms": bare_ms,
        "recorded_ms": steps_ms[:RECORDED_STEPS],
        "profiled_ms": steps_ms[RECORDED_STEPS:],
        "later_ms": later_ms,
        "parts_ms": {name: calls for name, calls in parts.items() if calls},
        "collections": [[sum(one == kind for one, _ in inside) for kind in range(3)], sum(ms for _, ms in inside)],
        "allocations": _allocations(out),
    }


def _allocations(out: Path) -> int:
    blocks = gpuledger.load(out).rank().table("blocks", ("step",)).column("step").to_pylist()
    return sum(step == RECORDED_STEPS - 1 for step in blocks)


def measure_model(given: argparse.Namespace, model: str) -> dict[str, Any]:
    """Return the rounds of one model, and medians over them. The first round warms up and is left out."""
    torch.manual_seed(0)
    way = model.removeprefix("sharded:")
    if way == model:
        workload, title = MODELS[model].build(given.device, small=given.small), MODELS[model].title
        for one in workload.models if given.compiled else ():
            one.compile()
        stepper = workload.stepper()
    else:
        stepper, title = sharded_stepper(way, given), f"Llama-shaped model, {way}, one of {RANKS} simulated ranks"
    wait = torch.cuda.synchronize if given.device.startswith("cuda") else (lambda: None)

    def step() -> float:
        wait()
        started_s = time.perf_counter()
        stepper()
        wait()
        return (time.perf_counter() - started_s) * 1e3

    with tempfile.TemporaryDirectory() as directory:
        rounds = [measure_round(step, Path(directory) / f"{number}.ledger") for number in range(given.rounds + 1)]
    return {"title": title, "first_round": rounds[0], "rounds": rounds[1:], **summarize(rounds[1:])}


def sharded_stepper(way: str, given: argparse.Namespace) -> Callable[[], None]:
    """Return a function that trains one step as one of several ranks, whose collectives are simulated."""
    import sharded_models
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    job = sharded_models.build(way, "tiny" if given.small else "1b", torch.device(given.device))

    def step() -> None:
        job.step()
        job.optimizer.step()
        job.optimizer.zero_grad()

    return step


def summarize(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over all rounds: ratios of steps over bare ones, and milliseconds of each call of a part."""

    def ratio(kind: str, chosen: slice) -> float:
        return statistics.median(
            statistics.median(one[kind][chosen]) / statistics.median(one["bare_ms"]) for one in rounds
        )

    calls_ms: dict[str, list[float]] = defaultdict(list)
    for one in rounds:
        for name, some_ms in one["parts_ms"].items():
            calls_ms[name] += some_ms
    return {
        "bare_ms": statistics.median(ms for one in rounds for ms in one["bare_ms"]),
        "recorded_ratio": ratio("recorded_ms", slice(1, -1)),  # without the scan and the closing
        "first_profiled_ratio": ratio("profiled_ms", slice(0, 1)),
        "second_profiled_ratio": ratio("profiled_ms", slice(1, 2)),
        "later_ratio": ratio("later_ms", slice(2, None)),
        "part_ms": {name: statistics.median(some_ms) for name, some_ms in calls_ms.items()},
        "part_ms_per_step": {
            name: sum(some_ms) / len(rounds) / RECORDED_STEPS
            for name, some_ms in calls_ms.items()
            if len(some_ms) >= len(rounds) * RECORDED_STEPS
        },
    }


def main() -> None:
    """Measure the models, each in a process of its own, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--models", default="gpt2,resnet50")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.device_count() else "cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--compiled", action="store_true", help="compile the models with model.compile()")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure_model(given, given.one)))
        return
    if given.out is None:
        parser.error("--out is required")
    results: dict[str, Any] = {
        "environment": describe_environment(given.device),
        "compiled": given.compiled,
        "models": {},
    }
    for model in given.models.split(","):
        ended = subprocess.run(
            [sys.executable, __file__, "--one", model, *sys.argv[1:]], stdout=subprocess.PIPE, text=True, check=False
        )
        if ended.returncode:
            results["models"][model] = {"failed": f"exit status {ended.returncode}"}
            continue
        found = results["models"][model] = json.loads(ended.stdout.splitlines()[-1])
        print(model, {name: round(value, 3) for name, value in found.items() if isinstance(value, float)})
        print(*(f"  {ms:8.2f} ms  {name}" for name, ms in found["part_ms"].items()), sep="\n", flush=True)
        print(*(f"  {ms:8.2f} ms a step  {name}" for name, ms in found["part_ms_per_step"].items()), sep="\n")
        write_results(given.out, results)


if __name__ == "__main__":
    main()
