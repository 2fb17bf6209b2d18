"""Measures step times under each way to record kernels: the timing measurement, its parts, and lighter ways.

One process per case (model-mode-batch, batch 0 being the model's own); there, rounds in which ways take their turn, the
order turning with the rounds, the less telling ways in every fourth round. A turn begins the way, takes three steps,
each from idle GPU to idle GPU, and ends it; three bare steps, and one that is not counted, stand before every turn,
and a round's ratios are against the median of its own. By default batches are small, so that the host is the limit;
``--cases spine`` is the eight models of the spine's bench with their own batches, training and inference.

Usage: python bench/time/time_pass_cost.py --out FILE.json [--seconds 100] [--small] [--keep DIRECTORY]
       python bench/time/time_pass_cost.py --out FILE.json --cases spine --ways time_pass,time_pass_without_calls
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from infer_one import ARGUMENTS
from models import EIGHT, MODELS
from time_pass_ways import FURTHER, LOGGED, RESULTS, TELLING, WAYS, Step, Way

from gpuledger.collect.adapter import kineto_events
from gpuledger.model.journal.journal import ActivityKind

CASES = "neumf-training-4096,llama-training-1,vit-training-2,resnet50-inference-1"
SPINE = ",".join(f"{model}-{mode}-0" for mode in ("training", "inference") for model in EIGHT)
STEPS, BARE_STEPS = 3, 4
START_S = 8.0
"""What a case takes besides its rounds: imports, the model, the steps before."""

COLUMNS = (
    "name",
    "device_index",
    "device_resource_id",
    "start_thread_id",
    "start_ns",
    "duration_ns",
    "correlation_id",
    "linked_correlation_id",
    "sequence_nr",
    "fwd_thread_id",
    "scope",
)
KEPT = ("time_pass", "uncorrelated", "nodes", "nodes_uncorrelated", "cuda_only")


def build(model: str, mode: str, batch_size: int, device: str, small: bool) -> Step:
    """Return a function that takes one step, and waits for the GPU."""
    workload = MODELS[model].build(device, small=small, batch_size=0 if small else batch_size)
    wait = torch.cuda.synchronize if device.startswith("cuda") else (lambda: None)
    batch = workload.make_batch()
    net = workload.models[0] if mode == "training" else workload.models[0].eval()

    def train() -> None:
        workload.train(batch)
        wait()

    def infer() -> None:
        with torch.no_grad():
            net(*batch[: ARGUMENTS.get(model, 1)])
        wait()

    return train if mode == "training" else infer


def timed(step: Step, count: int, after_first: Step | None = None) -> list[float]:
    """Return the seconds of each of some steps."""
    found = []
    for number in range(count):
        started_s = time.perf_counter()
        step()
        found.append(time.perf_counter() - started_s)
        if after_first is not None and number == 0:
            after_first()
    return found


def turn(way: Way, step: Step) -> dict[str, Any]:
    """Return one turn: seconds to begin and to end, and of each step, and how many kernels and copies were told of."""
    started_s = time.perf_counter()
    context = way()
    after_first = context.__enter__()
    begun_s = time.perf_counter()
    try:
        steps_s = timed(step, STEPS, after_first)
    finally:
        ending_s = time.perf_counter()
        context.__exit__(None, None, None)
    end_s = time.perf_counter() - ending_s
    return {"steps_s": steps_s, "begin_s": begun_s - started_s, "end_s": end_s, "on_device": count_on_device()}


def count_on_device() -> int:
    """Return how many kernels and copies Kineto told of in the last turn."""
    events = RESULTS[0].events() if RESULTS and RESULTS[0] is not None else []
    kinds = [kineto_events.kind_of_event(event) for event in events]
    return sum(kind in (ActivityKind.KERNEL, ActivityKind.COPY) for kind in kinds)


def dump(place: Path) -> None:
    """Write the events and the log of the last turn."""
    events = RESULTS[0].events() if RESULTS and RESULTS[0] is not None else []
    rows = [
        [getattr(one, column)() for column in COLUMNS]
        + [str(one.device_type()), getattr(one, "is_user_annotation", lambda: None)()]
        for one in events
    ]
    place.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"columns": [*COLUMNS, "device_type", "annotation"], "rows": rows, "log": list(LOGGED)})
    place.write_bytes(gzip.compress(text.encode()))


def summarize(turns: dict[str, list[dict[str, Any]]], operators: int) -> dict[str, Any]:
    """Return the median ratio of each way's steps over the bare ones of its round, and what it takes an operator."""
    found: dict[str, Any] = {}
    for name, rounds in turns.items():
        ratios = [[one / entry["bare_s"] for one in entry["steps_s"]] for entry in rounds]
        extra_s = [statistics.mean(entry["steps_s"][1:]) - entry["bare_s"] for entry in rounds]
        found[name] = {
            "rounds": len(rounds),
            "ratio_by_step": [statistics.median(column) for column in zip(*ratios, strict=True)],
            "ratio_by_step_of_first_round": ratios[0],
            "on_device": statistics.median(entry["on_device"] for entry in rounds),
            "ratio_of_first_two": statistics.median(statistics.mean(row[:2]) for row in ratios),
            "host_us_per_operator": statistics.median(extra_s) * 1e6 / operators if operators else None,
            "begin_ms": statistics.median(entry["begin_s"] for entry in rounds) * 1e3,
            "end_ms": statistics.median(entry["end_s"] for entry in rounds) * 1e3,
        }
    return found


def count_operators(step: Step) -> int:
    """Return how many operators, ranges and nodes Kineto records of one step on the host."""
    with WAYS["host_only"]():
        step()
    return len(RESULTS[0].events())


def one_round(ways: list[str], step: Step, failed: dict[str, str], deadline_s: float) -> dict[str, dict[str, Any]]:
    """Return one turn of each way for which there is time, with the bare step of the round."""
    found: dict[str, dict[str, Any]] = {}
    bare_s: list[float] = []
    for name in ways:
        if time.monotonic() > deadline_s:
            break
        bare_s += timed(step, BARE_STEPS)[1:]
        try:
            found[name] = turn(WAYS[name], step)
        except Exception as error:  # one way that this torch lacks must not end the rest
            failed[name] = f"{type(error).__name__}: {error}"
    return {name: {**entry, "bare_s": statistics.median(bare_s)} for name, entry in found.items()}


def measure(arguments: argparse.Namespace) -> None:
    """Measure one case; what is known is written after every round."""
    deadline_s = time.monotonic() + arguments.seconds
    model, mode, batch_size = arguments.case.split("-")
    torch.manual_seed(0)
    step = build(model, mode, int(batch_size), arguments.device, arguments.small)
    for _ in range(6):
        step()
    operators = count_operators(step)
    for name in KEPT if arguments.keep and time.monotonic() < deadline_s else ():
        turn(WAYS[name], step)
        dump(arguments.keep / f"{arguments.case}-{name}.json.gz")
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    failed: dict[str, str] = {}
    telling, rounds = arguments.ways.split(",") if arguments.ways else list(TELLING), 0
    while not rounds or time.monotonic() < deadline_s:
        until_s = deadline_s if rounds else math.inf
        ways = [*telling, *(FURTHER if rounds % 4 == 0 and not arguments.ways else ())]
        telling = telling[1:] + telling[:1]
        for name, entry in one_round([name for name in ways if name not in failed], step, failed, until_s).items():
            turns[name].append(entry)
        rounds += 1
        if not any(turns.values()):
            break
        known = {name: entries for name, entries in turns.items() if entries}
        bare_ms = statistics.median(entry["bare_s"] for entries in known.values() for entry in entries) * 1e3
        write_results(
            arguments.out,
            {
                "batch_size": int(batch_size),
                "operators_per_step": operators,
                "bare_ms": bare_ms,
                "ways": summarize(known, operators),
                "failed": failed,
            },
        )


def main() -> None:
    """Run every case in a process of its own, and join what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--keep", type=Path, help="write one turn's events of some ways there")
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--ways", default="", help="only these, all in every round")
    parser.add_argument("--case", help="only this one, here; --seconds is for its rounds then")
    arguments = parser.parse_args()
    if arguments.case:
        measure(arguments)
        return
    cases = (SPINE if arguments.cases == "spine" else arguments.cases).split(",")
    results: dict[str, Any] = {"environment": describe_environment(arguments.device), "cases": {}}
    each_s = arguments.seconds / len(cases)
    for case in cases:
        part = arguments.out.with_suffix(f".{case}.json")
        command = [
            sys.executable,
            __file__,
            "--case",
            case,
            "--out",
            str(part),
            "--seconds",
            str(max(each_s - START_S, 1)),
        ]
        command += ["--device", arguments.device, *(["--small"] if arguments.small else [])]
        command += ["--keep", str(arguments.keep)] if arguments.keep else []
        command += ["--ways", arguments.ways] if arguments.ways else []
        try:
            why = subprocess.run(command, capture_output=True, text=True, check=False, timeout=each_s).stderr[-2000:]
        except subprocess.TimeoutExpired:
            why = f"not one round in {each_s:.0f} s"
        found = json.loads(part.read_text(encoding="utf-8")) if part.is_file() else {"failed": why}
        results["cases"][case] = found
        write_results(arguments.out, results)
        ways = found.get("ways", {})
        print(case, {name: [round(one, 2) for one in way["ratio_by_step"]] for name, way in ways.items()}, flush=True)
        part.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
