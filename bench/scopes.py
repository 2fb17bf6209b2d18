"""Measures what 1,000 scopes a step cost on GPT-2 small: where nothing records, and inside a recorded window.

Each leaf module's forward is decorated with its share of the scopes, nested, so that every scope holds work of its
forward and of its backward. Blocks of steps with scopes and without take turns on one model; a block's time is wall
time between two synchronizations, and a ratio is a block against the one beside it. The cost of one scope alone is
timed as well, in a loop that does nothing else.

Usage: python bench/scopes.py --out bench/results/h200/scopes.json --seconds 25
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from environment import describe_environment, write_results
from models import MODELS
from overhead import Rounds, Timer, run_window, summarize_ratios, synchronizer
from torch import nn

import gpuledger

SCOPES = 1_000
ROUNDS = 10
WARM_UP_STEPS = 8
TIMED_SCOPES = 20_000


class Scopes:
    """Puts ``count`` scopes round the forwards of a model's leaf modules, and takes them out again."""

    def __init__(self, model: nn.Module, count: int) -> None:
        self._shares: list[tuple[nn.Module, list[str]]] = []
        leaves = [(path, module) for path, module in model.named_modules() if not any(module.children())]
        for number, (path, module) in enumerate(leaves):
            share = count // len(leaves) + (number < count % len(leaves))
            self._shares.append((module, [f"{path}.{level}" for level in range(share)]))
        self.count = sum(len(names) for _, names in self._shares)

    def put_in(self) -> None:
        """Decorate the forwards."""
        for module, names in self._shares:
            forward: Callable[..., Any] = module.forward
            for name in names:
                forward = gpuledger.scope(name)(forward)
            module.forward = forward

    def take_out(self) -> None:
        """Leave the forwards as they were."""
        for module, names in self._shares:
            if names:
                del module.forward


def time_one_scope() -> float:
    """Return the nanoseconds of entering and leaving one scope."""

    def enter() -> None:
        with gpuledger.scope("encoder"):
            pass

    return min(timeit.repeat(enter, number=TIMED_SCOPES, repeat=7)) / TIMED_SCOPES * 1e9


def time_one_recorded_scope(directory: Path) -> float:
    """Return the nanoseconds of entering and leaving one scope while something is recorded."""
    with gpuledger.record(out=directory / "one", force=True):
        torch.ones(1, device="cuda" if torch.cuda.is_available() else "cpu")
        return time_one_scope()


def measure_unrecorded(timer: Timer, scopes: Scopes, deadline_s: float) -> tuple[list[float], list[float], list[float]]:
    """Return seconds per step without scopes, with them, and the share of the latter in which work was issued."""
    plain_s: list[float] = []
    scoped_s: list[float] = []
    while len(plain_s) < ROUNDS or time.perf_counter() < deadline_s:
        for with_scopes in (False, True) if len(plain_s) % 2 else (True, False):
            if with_scopes:
                scopes.put_in()
            seconds = timer.warm_block() / timer.block_steps
            (scoped_s if with_scopes else plain_s).append(seconds)
            if with_scopes:
                scopes.take_out()
    return plain_s, scoped_s, timer.issued_frac


def measure_recorded(timer: Timer, scopes: Scopes, directory: Path, deadline_s: float) -> tuple[Rounds, Rounds]:
    """Return windows without scopes and with them, in turns."""
    plain, scoped = Rounds(), Rounds()
    while len(plain.recorded_s) < 4 or time.perf_counter() < deadline_s:
        for rounds in (plain, scoped) if len(plain.recorded_s) % 2 else (scoped, plain):
            if rounds is scoped:
                scopes.put_in()
            run_window(timer, rounds, directory)
            if rounds is scoped:
                scopes.take_out()
    return plain, scoped


def _ratios(above: list[float], below: list[float]) -> dict[str, float]:
    return summarize_ratios([one / other for one, other in zip(above, below, strict=True)])


def main() -> None:
    """Measure and write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/results/h200/scopes.json"))
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--model", default="gpt2", choices=list(MODELS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="a shrunken model, to try the script on a CPU")
    arguments = parser.parse_args()
    started_s = time.perf_counter()
    torch.manual_seed(0)
    workload = MODELS[arguments.model].build(arguments.device, small=arguments.small)
    timer = Timer(workload.stepper(), synchronizer(arguments.device), block_steps=4)
    scopes = Scopes(workload.models[0], SCOPES)
    timer.block(WARM_UP_STEPS)
    timer.issued_frac.clear()
    begun_s = time.perf_counter()
    left_s = started_s + arguments.seconds - begun_s
    plain_s, scoped_s, issued_frac = measure_unrecorded(timer, scopes, begun_s + 0.45 * left_s)
    with tempfile.TemporaryDirectory() as name:
        one_ns, one_recorded_ns = time_one_scope(), time_one_recorded_scope(Path(name))
        plain, scoped = measure_recorded(timer, scopes, Path(name), begun_s + 0.9 * left_s)
    results = {
        "environment": describe_environment(arguments.device),
        "title": MODELS[arguments.model].title,
        "scopes_per_step": scopes.count,
        "step_ms": round(statistics.median(plain_s) * 1e3, 4),
        "issued_frac": round(statistics.median(issued_frac), 3),
        "unrecorded": _ratios(scoped_s, plain_s),
        "one_scope_ns": round(one_ns, 1),
        "one_recorded_scope_ns": round(one_recorded_ns, 1),
        "in_window": _ratios(scoped.recorded_s, plain.recorded_s),
        "in_window_step_ms": {
            "without": round(statistics.median(plain.recorded_s) * 1e3, 4),
            "with": round(statistics.median(scoped.recorded_s) * 1e3, 4),
        },
        "failed_checks": plain.failed_checks + scoped.failed_checks,
        "seconds": round(time.perf_counter() - started_s, 1),
    }
    write_results(arguments.out, results)
    print({key: value for key, value in results.items() if key != "environment"})


if __name__ == "__main__":
    main()
