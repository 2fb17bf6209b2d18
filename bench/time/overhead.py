"""Measures what recording costs: step time in the record window, after it, and under the peers, against bare steps.

Each model runs in a process of its own. There, rounds of blocks take turns: bare (nothing of gpuledger installed),
recorded (inside a window, between its opening and its closing step), stacks (the window's closing step, with the pause
at its end), after (the window is closed, the recording is not). A block's time is wall time between two
synchronizations; a round's ratio is a block against the bare block of the same round, and the order inside a round
turns with every round, so that clocks and temperature cancel. Figures are medians over the rounds, with quartiles and
a 95 % interval of the median. The peers come last, a profiler last of all: it can leave a slow-down behind.

Usage: python bench/time/overhead.py --out bench/time/results/h200/overhead.json --seconds 360
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from models import EIGHT, MODELS

import gpuledger

ROUNDS = 30
"""Alternations at the least; more where the time given allows it."""
PEER_ROUNDS = 5
WARM_UP_STEPS = 10
BLOCK_STEPS = (2, 12)
"""Fewest and most steps of one block."""

Step = Callable[[], None]


def synchronizer(device: str) -> Step:
    """Return a function that waits until the device has done its work."""
    return torch.cuda.synchronize if device.startswith("cuda") else (lambda: None)


@dataclass
class Timer:
    """Times blocks of steps on one device."""

    step: Step
    wait: Step
    block_steps: int = BLOCK_STEPS[0]
    issued_frac: list[float] = field(default_factory=list)

    def block(self, steps: int = 0) -> float:
        """Return the seconds of one block of steps, from idle device to idle device."""
        self.wait()
        started_s = time.perf_counter()
        for _ in range(steps or self.block_steps):
            self.step()
        issued_s = time.perf_counter()
        self.wait()
        ended_s = time.perf_counter()
        self.issued_frac.append((issued_s - started_s) / (ended_s - started_s))
        return ended_s - started_s

    def warm_block(self) -> float:
        """Return the seconds of one block after an untimed step, so that an idle spell before it does not count."""
        self.step()
        return self.block()


@dataclass
class Rounds:
    """What the alternations gave: seconds per step by kind of block, one entry a round; pauses in milliseconds."""

    bare_s: list[float] = field(default_factory=list)
    recorded_s: list[float] = field(default_factory=list)
    stacks_s: list[float] = field(default_factory=list)
    stacks_pause_s: list[float] = field(default_factory=list)
    after_s: list[float] = field(default_factory=list)
    pauses_ms: list[dict[str, float]] = field(default_factory=list)
    recorded_pause_s: list[float] = field(default_factory=list)
    failed_checks: int = 0


def run_round(timer: Timer, rounds: Rounds, directory: Path, *, bare_first: bool) -> None:
    """Add one alternation to ``rounds``."""
    if bare_first:
        rounds.bare_s.append(timer.warm_block() / timer.block_steps)
    run_window(timer, rounds, directory)
    if not bare_first:
        rounds.bare_s.append(timer.warm_block() / timer.block_steps)


def run_window(timer: Timer, rounds: Rounds, directory: Path) -> None:
    """Open a window, time its steps, let it close by itself, and time the steps after it.

    The window's first step is not timed (it opens the recording), nor is its drain; the last one is timed alone,
    because the window closes at its end.
    """
    last_step = timer.block_steps + 2
    spans: dict[str, tuple[int, int]] = {}

    def timed(kind: str, steps: int) -> float:
        timer.wait()
        started_ns = time.time_ns()
        seconds = timer.block(steps) / steps
        spans[kind] = (started_ns, time.time_ns())
        return seconds

    path = directory / "window.ledger"
    with gpuledger.record("window", out=path, steps=(1, last_step), force=path.exists()):
        timer.step()
        rounds.recorded_s.append(timed("recorded", timer.block_steps))
        rounds.stacks_s.append(timed("stacks", 1))
        rounds.after_s.append(timer.warm_block() / timer.block_steps)
    _add_pauses(rounds, json.loads((path / "rank-0" / "manifest.json").read_text()), spans)


def _add_pauses(rounds: Rounds, manifest: dict[str, Any], spans: dict[str, tuple[int, int]]) -> None:
    by_reason: dict[str, float] = {}
    inside = dict.fromkeys(spans, 0.0)
    for pause in manifest["pauses"]:
        by_reason[pause["reason"]] = by_reason.get(pause["reason"], 0.0) + pause["duration_ns"] / 1e6
        for kind, (start_ns, end_ns) in spans.items():
            if start_ns <= pause["start_ns"] < end_ns:
                inside[kind] += pause["duration_ns"] / 1e9
    rounds.pauses_ms.append(by_reason)
    rounds.recorded_pause_s.append(inside["recorded"])
    rounds.stacks_pause_s.append(inside["stacks"])
    rounds.failed_checks += sum(not check["ok"] for check in manifest["checks"])
    if manifest["window"]["last_step"] is None or manifest["status"] != "closed":
        raise SystemExit(f"overhead: the window was not recorded: {manifest['window']}, notes: {manifest['notes']}")


def summarize_ratios(ratios: list[float]) -> dict[str, float]:
    """Return median, quartiles and the 95 % interval of the median (order statistics, no assumption of a shape)."""
    ordered = sorted(ratios)
    count = len(ordered)
    half_width = 0.98 * count**0.5
    low, high = max(0, round(count / 2 - half_width) - 1), min(count - 1, round(count / 2 + half_width))
    quartiles = statistics.quantiles(ordered, n=4) if count > 1 else [ordered[0]] * 3
    return {
        "median": round(statistics.median(ordered), 5),
        "quartile_low": round(quartiles[0], 5),
        "quartile_high": round(quartiles[2], 5),
        "median_low": round(ordered[low], 5),
        "median_high": round(ordered[high], 5),
        "count": count,
    }


def _against(blocks: list[float], bare: list[float]) -> dict[str, float]:
    return summarize_ratios([block / base for block, base in zip(blocks, bare, strict=True)])


def describe_rounds(timer: Timer, rounds: Rounds, untouched_s: list[float]) -> dict[str, Any]:
    """Return the figures of one model."""
    reasons = sorted({reason for pauses in rounds.pauses_ms for reason in pauses})
    apart_s = [whole - pause for whole, pause in zip(rounds.stacks_s, rounds.stacks_pause_s, strict=True)]
    issued_frac = statistics.median(timer.issued_frac)
    return {
        "bare_step_ms": round(statistics.median(rounds.bare_s) * 1e3, 4),
        "block_steps": timer.block_steps,
        "issued_frac": round(issued_frac, 3),
        "binds": "CPU" if issued_frac > 0.9 else "GPU",
        "in_window": _against(rounds.recorded_s, rounds.bare_s),
        "pauses_in_timed_steps_ms": round(statistics.median(rounds.recorded_pause_s) * 1e3, 3),
        "stacks_step_with_closing_pause": _against(rounds.stacks_s, rounds.bare_s),
        "stacks_step_pauses_apart": _against(apart_s, rounds.bare_s),
        "after_window": _against(rounds.after_s, rounds.bare_s),
        "bare_against_next_bare": summarize_ratios(
            [after / before for before, after in zip(rounds.bare_s, rounds.bare_s[1:], strict=False)]
        ),
        "bare_against_before_first_recording": round(
            statistics.median(rounds.bare_s) / statistics.median(untouched_s), 5
        ),
        "pauses_per_window_ms": {
            "total": round(statistics.median(sum(pauses.values()) for pauses in rounds.pauses_ms), 3),
            **{
                reason: round(statistics.median(pauses.get(reason, 0.0) for pauses in rounds.pauses_ms), 3)
                for reason in reasons
            },
        },
        "failed_checks": rounds.failed_checks,
    }


@contextlib.contextmanager
def _history_with_stacks() -> Iterator[None]:
    torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=1_000_000)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def _empty_dispatch_mode() -> AbstractContextManager[Any]:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Empty(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    return Empty()


def peers(device: str) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """Return the other ways to watch a step, in the order in which they are measured."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    found: dict[str, Callable[[], AbstractContextManager[Any]]] = {}
    if device.startswith("cuda"):
        activities.append(ProfilerActivity.CUDA)
        found["torch memory history, Python stacks"] = _history_with_stacks
    found["empty TorchDispatchMode"] = _empty_dispatch_mode
    found["torch.profiler, CPU and CUDA"] = lambda: profile(activities=activities)
    found["torch.profiler, memory, shapes and stacks"] = lambda: profile(
        activities=activities, profile_memory=True, record_shapes=True, with_stack=True
    )
    return found


def measure_peers(timer: Timer, device: str, deadline_s: float) -> dict[str, Any]:
    """Return the ratio of each peer against the bare blocks around it."""
    results: dict[str, Any] = {}
    for name, make in peers(device).items():
        ratios: list[float] = []
        while len(ratios) < PEER_ROUNDS and (not ratios or time.perf_counter() < deadline_s):
            bare_s = timer.warm_block()
            try:
                with make():
                    watched_s = timer.warm_block()
            except RuntimeError as error:
                results[name] = {"median": None, "note": f"{type(error).__name__}: {error}"[:200]}
                break
            ratios.append(watched_s / bare_s)
        else:
            results[name] = summarize_ratios(ratios)
    return results


def measure_model(name: str, device: str, seconds: float, *, small: bool) -> dict[str, Any]:
    """Return the figures of one model, within about ``seconds`` unless the least number of rounds takes longer."""
    torch.manual_seed(0)
    started_s = time.perf_counter()
    timer = Timer(MODELS[name].build(device, small=small).stepper(), synchronizer(device))
    timer.block(WARM_UP_STEPS)
    untouched_s = [timer.block(3) / 3 for _ in range(5)]
    step_s = statistics.median(untouched_s)
    round_s = 0.55 * seconds / ROUNDS
    timer.block_steps = min(max(int((round_s / step_s - 5) / 3), BLOCK_STEPS[0]), BLOCK_STEPS[1])
    untouched_s = [timer.warm_block() / timer.block_steps for _ in range(5)]
    timer.issued_frac.clear()
    rounds = Rounds()
    with tempfile.TemporaryDirectory() as directory:
        run_window(timer, Rounds(), Path(directory))
        while len(rounds.bare_s) < ROUNDS or time.perf_counter() - started_s < 0.7 * seconds:
            run_round(timer, rounds, Path(directory), bare_first=len(rounds.bare_s) % 2 == 0)
            if len(rounds.bare_s) >= 4 * ROUNDS:
                break
    figures = describe_rounds(timer, rounds, untouched_s)
    gc.collect()
    figures["peers"] = measure_peers(timer, device, started_s + 1.1 * seconds)
    return {"title": MODELS[name].title, **figures, "seconds": round(time.perf_counter() - started_s, 1)}


def measure_in_process(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one model, measured in a fresh process."""
    command = [sys.executable, __file__, "--one", name, "--device", arguments.device]
    command += ["--seconds", str(arguments.seconds / len(arguments.models)), *(["--small"] if arguments.small else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {"title": MODELS[name].title, "failed": f"exit status {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def print_line(name: str, figures: dict[str, Any]) -> None:
    """Print one model's line of the table."""
    if "failed" in figures:
        print(f"{name:12s} {figures['failed']}", flush=True)
        return
    beside = "  ".join(str(peer["median"]) for peer in figures["peers"].values())
    print(
        f"{name:12s} {figures['bare_step_ms']:8.2f} ms {figures['binds']}"
        f"  in window {figures['in_window']['median']:.3f}"
        f"  after {figures['after_window']['median']:.4f}  null {figures['bare_against_next_bare']['median']:.4f}"
        f"  pauses {figures['pauses_per_window_ms']['total']:.0f} ms  failed checks {figures['failed_checks']}"
        f"  peers {beside}",
        flush=True,
    )


def main() -> None:
    """Measure every model named and write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(EIGHT), choices=list(MODELS))
    parser.add_argument("--out", type=Path, default=Path("bench/time/results/h200/overhead.json"))
    parser.add_argument("--seconds", type=float, default=360.0, help="for all models together")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="shrunken models, to try the script on a CPU")
    parser.add_argument("--one", choices=list(MODELS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure_model(arguments.one, arguments.device, arguments.seconds, small=arguments.small)))
        return
    results: dict[str, Any] = {"environment": describe_environment(arguments.device), "models": {}}
    for name in arguments.models:
        results["models"][name] = measure_in_process(name, arguments)
        print_line(name, results["models"][name])
        write_results(arguments.out, results)


if __name__ == "__main__":
    main()
