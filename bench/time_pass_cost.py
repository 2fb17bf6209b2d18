"""Measures what a step takes under each way to record kernels: the time pass, what it is made of, and lighter ways.

One process per case (model-mode-batch, batch 0 being the model's own); there, rounds in which ways take their turn, the
order turning with the rounds, the less telling ways in every fourth round. A turn begins the way, takes three steps,
each from idle card to idle card, and ends it; three bare steps, and one that is not counted, stand before every turn,
and a round's ratios are against the median of its own. By default batches are small, so that the host is the limit;
``--cases spine`` is the eight models of the spine's bench with their own batches, training and inference.

Usage: python bench/time_pass_cost.py --out FILE.json [--seconds 100] [--small] [--keep DIRECTORY]
       python bench/time_pass_cost.py --out FILE.json --cases spine --ways time_pass,time_pass_without_calls
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gzip
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from environment import describe_environment, write_results
from infer_one import ARGUMENTS
from models import EIGHT, MODELS
from torch import nn
from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler
from torch._C._profiler import ProfilerActivity, ProfilerConfig, ProfilerState, RecordScope, _ExperimentalConfig

from gpuledger.collect import torch_private
from gpuledger.collect.rank_journal import RankJournal
from gpuledger.collect.roster import Roster
from gpuledger.collect.time_pass import TimePass
from gpuledger.model.journal import ActivityKind

CASES = "neumf-training-4096,llama-training-1,vit-training-2,resnet50-inference-1"
SPINE = ",".join(f"{model}-{mode}-0" for mode in ("training", "inference") for model in EIGHT)
STEPS, BARE_STEPS = 3, 4
START_S = 8.0
"""What a case takes besides its rounds: imports, the model, the steps before."""
Step = Callable[[], None]
Way = Callable[[], AbstractContextManager[Step | None]]
"""A way to record; what it gives is called after its first step."""
DRIVER_CALLS, RUNTIME_CALLS = 4, 5
"""CUPTI's numbers of these kinds of activities (cupti_activity.h)."""
PER_THREAD = "none\nCUPTI_PER_THREAD_BUFFER_ENABLED=true"
"""A line of Kineto's configuration, behind one that it takes no notice of: buffers of CUPTI's for each thread alone."""
LOGGED: list[tuple[int, int, int, int, int]] = []
"""Module calls of the last turn that logged them: begin, end, module, sequence numbers at both."""
RESULTS: list[Any] = []
"""Kineto's results of the last turn."""


def activities(on_host: bool = True) -> set[ProfilerActivity]:
    """Return what Kineto is asked to record."""
    asked = {ProfilerActivity.CUDA} if torch.cuda.is_available() else set()
    return asked | {ProfilerActivity.CPU} if on_host or not asked else asked


@contextlib.contextmanager
def kineto(
    asked: set[ProfilerActivity],
    scopes: set[RecordScope],
    *,
    correlate: bool = True,
    shapes: bool = False,
    flops: bool = False,
    configuration: str = "",
) -> Iterator[None]:
    """Record with Kineto, and take CUPTI out again at the end."""
    more = {"custom_profiler_config": configuration} if configuration else {}
    own = _ExperimentalConfig(disable_external_correlation=not correlate, **more)
    config = ProfilerConfig(ProfilerState.KINETO, shapes, False, False, flops, False, own)
    with torch_private._variables(TEARDOWN_CUPTI="1", KINETO_LOG_LEVEL="99"):
        _prepare_profiler(config, asked)
        _enable_profiler(config, asked, scopes)
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            RESULTS[:] = [_disable_profiler()]
            if torch.cuda.is_available():
                torch_private._see_cupti_off()


@contextlib.contextmanager
def module_log() -> Iterator[None]:
    """Log begin and end of every module call, with autograd's sequence numbers, in a list of Python's."""
    LOGGED.clear()
    original, log, now_ns = nn.Module.__call__, LOGGED.append, time.time_ns
    sequence, numbers = torch_private.sequence_reader(), {}

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        began_ns, first = now_ns(), sequence()
        try:
            return original(self, *args, **kwargs)
        finally:
            log((began_ns, now_ns(), numbers.setdefault(id(self), len(numbers)), first, sequence()))

    with mock.patch.object(nn.Module, "__call__", __call__):
        yield


@contextlib.contextmanager
def warmed() -> Iterator[None]:
    """Launch a few kernels first, so that what CUPTI sets up with the first launch is done before the steps."""
    for _ in range(8):
        torch.zeros(8, device="cuda" if torch.cuda.is_available() else "cpu")
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    yield


def leave_out_calls() -> None:
    """Have the CUPTI that Kineto loaded record no calls of the driver and the runtime from here on.

    Raises:
        OSError: there is none, or it refuses.
    """
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    place = next((line.split()[-1] for line in lines if "libcupti.so" in line), None)
    if place is None:
        raise OSError("no libcupti is loaded")
    library = ctypes.CDLL(place)
    for kind in (DRIVER_CALLS, RUNTIME_CALLS):
        if status := library.cuptiActivityDisable(kind):
            raise OSError(f"cuptiActivityDisable({kind}): {status}")


@contextlib.contextmanager
def without_calls(way: AbstractContextManager[Step | None]) -> Iterator[Step | None]:
    """Enter a way, and record no calls of the driver and the runtime: from its second step on where it has a say."""
    with way as after_first:
        if after_first is None:
            leave_out_calls()
            yield None
        else:
            first = after_first

            def leave_out() -> None:
                first()
                leave_out_calls()

            yield leave_out


@contextlib.contextmanager
def time_pass(*, operators: bool = False, **replaced: Any) -> Iterator[Step | None]:
    """Record with our time pass, operators in the first step or in all, with functions of torch_private replaced."""
    from tempfile import gettempdir

    recorded = TimePass(RankJournal(lambda: Path(gettempdir()), []), Roster(), lambda: None)
    with mock.patch.multiple(torch_private, **replaced) if replaced else contextlib.nullcontext():
        recorded.begin()
        profiler = recorded._profiler
        try:
            yield None if operators else lambda: recorded.leave_out_operators(2)
        finally:
            recorded.end(keep=False)
            RESULTS[:] = [getattr(getattr(profiler, "_profile", None), "kineto_results", None)]


class NoProfiler:
    """Stands in for Kineto."""

    def leave_out_operators(self) -> bool:
        """Go on as before."""
        return False

    def stop(self, *, wait: bool) -> list[Any]:
        """Return nothing."""
        return []


@contextlib.contextmanager
def both(*ways: AbstractContextManager[Any]) -> Iterator[None]:
    """Enter several."""
    with contextlib.ExitStack() as stack:
        for way in ways:
            stack.enter_context(way)
        yield


NODES = {RecordScope.BACKWARD_FUNCTION}
TELLING: dict[str, Way] = {
    "torch_profiler": lambda: kineto(activities(), set()),
    "time_pass": time_pass,
    "time_pass_without_calls": lambda: without_calls(time_pass()),
    "cuda_only": lambda: kineto(activities(False), set()),
    "cuda_only_without_calls": lambda: without_calls(kineto(activities(False), set())),
    "cuda_only_per_thread": lambda: kineto(activities(False), set(), configuration=PER_THREAD),
}
"""Compared with bare steps in every round."""

FURTHER: dict[str, Way] = {
    "time_pass_with_operators": lambda: time_pass(operators=True),
    "uncorrelated": lambda: kineto(activities(), set(), correlate=False),
    "nodes": lambda: both(kineto(activities(), NODES), module_log()),
    "nodes_warmed": lambda: both(kineto(activities(), NODES), warmed(), module_log()),
    "nodes_uncorrelated": lambda: both(kineto(activities(), NODES, correlate=False), module_log()),
    "host_only": lambda: kineto({ProfilerActivity.CPU}, set()),
    "ranges_alone": lambda: time_pass(operators=True, Profiler=NoProfiler),
    "log_alone": module_log,
    "time_pass_warmed": lambda: both(time_pass(operators=True), warmed()),
    "flops": lambda: kineto(activities(), set(), flops=True),
    "shapes": lambda: kineto(activities(), set(), shapes=True),
}
"""``nodes`` leaves out operators' records and keeps those of graph nodes."""
WAYS = TELLING | FURTHER

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
    """Return a function that takes one step, and waits for the card."""
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
    kinds = [torch_private.kind_of_event(event) for event in events]
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
    with kineto({ProfilerActivity.CPU}, set()):
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
