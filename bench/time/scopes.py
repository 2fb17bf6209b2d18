"""Measures what 1,000 scopes a step cost on GPT-2 small: where nothing records, and inside a recorded window.

Each leaf module's forward is decorated with its share of the scopes, nested, so that every scope holds work of its
forward and of its backward. Blocks of steps with scopes and without take turns on one model; a block's time is wall
time between two synchronizations, and a ratio is a block against the one beside it, in a recording a window's block
against that of the window beside it. What the host spends is measured apart, in windows of their own: in a step that
begins on an idle GPU, forward and backward each from call to return, and in them the search for the places where
backward goes from one scope to another. The cost of one scope alone is timed in a loop that does nothing else.

Usage: python bench/time/scopes.py --out bench/time/results/h200/scopes.json --seconds 110
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from models import MODELS
from overhead import Rounds, Timer, run_window, summarize_ratios, synchronizer
from torch import nn

import gpuledger
from gpuledger.collect.attribution.scope_tracker import ScopeTracker

SCOPES = 1_000
ROUNDS = 10
WINDOWS = 20
"""Pairs of windows at the least, whatever time they take."""
PART_WINDOWS = 3
"""Pairs of windows in which the host's parts are timed."""
BLOCK_STEPS = 16
"""Steps of a timed block: it begins on an idle GPU, which waits for the first forward's scopes and for none after."""
PART_STEPS = 8
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


def time_one_scope() -> dict[str, float]:
    """Return the nanoseconds of entering and leaving one scope: around a block, and of a decorated function."""

    def enter() -> None:
        with gpuledger.scope("encoder"):
            pass

    def nothing() -> None:
        pass

    decorated, plain_ns = gpuledger.scope("encoder")(nothing), _best_ns(nothing)
    return {"with": round(_best_ns(enter) - plain_ns, 1), "decorated": round(_best_ns(decorated) - plain_ns, 1)}


def _best_ns(call: Callable[..., Any]) -> float:
    return min(timeit.repeat(call, number=TIMED_SCOPES, repeat=7)) / TIMED_SCOPES * 1e9


def time_one_recorded_scope(directory: Path) -> dict[str, float]:
    """Return the same while something is recorded, and what of it the allocator's own call takes, twice a scope."""
    with gpuledger.record(out=directory / "one", force=True):
        torch.ones(1, device="cuda" if torch.cuda.is_available() else "cpu")
        taken = time_one_scope()
        if torch.cuda.is_available():
            tell = torch._C._cuda_setMemoryMetadata
            taken["allocator_call"] = round(_best_ns(lambda: tell("4.2x~7")), 1)
            tell("")
        return taken


@dataclass
class HostTimes:
    """Seconds that the host spent in each step's forward, backward, and search before backward."""

    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)
    search_s: list[float] = field(default_factory=list)

    def medians_us(self) -> dict[str, float]:
        """Return the medians in microseconds."""
        columns = {"forward": self.forward_s, "backward": self.backward_s, "search": self.search_s}
        return {name: round(statistics.median(column) * 1e6, 1) for name, column in columns.items()}


@contextmanager
def clocked(model: nn.Module, times: HostTimes) -> Iterator[None]:
    """Time the parts of every step inside."""
    began_s = [0.0]
    handles = [
        model.register_forward_pre_hook(lambda *_: began_s.__setitem__(0, time.perf_counter())),
        model.register_forward_hook(lambda *_: times.forward_s.append(time.perf_counter() - began_s[0])),
    ]
    replaced = [(torch.Tensor, "backward", times.backward_s), (ScopeTracker, "before_backward", times.search_s)]
    originals = [getattr(place, name) for place, name, _ in replaced]
    for (place, name, column), original in zip(replaced, originals, strict=True):
        setattr(place, name, _clocked_call(original, column))
    try:
        yield
    finally:
        for (place, name, _), original in zip(replaced, originals, strict=True):
            setattr(place, name, original)
        for handle in handles:
            handle.remove()


def _clocked_call(original: Callable[..., Any], column: list[float]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            column.append(time.perf_counter() - began_s)

    return called


def measure_parts(timer: Timer, model: nn.Module, scopes: Scopes, directory: Path) -> dict[str, dict[str, float]]:
    """Return the host's median microseconds in a step's parts, inside a window, without scopes and with them."""
    plain, scoped = HostTimes(), HostTimes()
    for number in range(2 * PART_WINDOWS):
        times = scoped if number % 2 else plain
        if times is scoped:
            scopes.put_in()
        with gpuledger.record("parts", out=directory / "parts", steps=(1, PART_STEPS + 2), force=True):
            timer.step()
            with clocked(model, times):
                for _ in range(PART_STEPS):
                    timer.wait()
                    timer.step()
            timer.step()
        if times is scoped:
            scopes.take_out()
    found = {"without": plain.medians_us(), "with": scoped.medians_us()}
    found["difference"] = {name: round(found["with"][name] - found["without"][name], 1) for name in found["with"]}
    return found


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
    while len(plain.recorded_s) < WINDOWS or time.perf_counter() < deadline_s:
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
    parser.add_argument("--out", type=Path, default=Path("bench/time/results/h200/scopes.json"))
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--model", default="gpt2", choices=list(MODELS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="a shrunken model, to try the script on a CPU")
    arguments = parser.parse_args()
    started_s = time.perf_counter()
    torch.manual_seed(0)
    workload = MODELS[arguments.model].build(arguments.device, small=arguments.small)
    timer = Timer(workload.stepper(), synchronizer(arguments.device), block_steps=BLOCK_STEPS)
    scopes = Scopes(workload.models[0], SCOPES)
    timer.block(WARM_UP_STEPS)
    timer.issued_frac.clear()
    begun_s = time.perf_counter()
    left_s = started_s + arguments.seconds - begun_s
    plain_s, scoped_s, issued_frac = measure_unrecorded(timer, scopes, begun_s + 0.2 * left_s)
    results: dict[str, Any] = {
        "environment": describe_environment(arguments.device),
        "title": MODELS[arguments.model].title,
        "scopes_per_step": scopes.count,
        "block_steps": timer.block_steps,
        "step_ms": round(statistics.median(plain_s) * 1e3, 4),
        "issued_frac": round(statistics.median(issued_frac), 3),
        "unprofiled": _ratios(scoped_s, plain_s),
    }
    write_results(arguments.out, results)
    with tempfile.TemporaryDirectory() as name:
        results["one_scope_ns"] = time_one_scope()
        results["one_recorded_scope_ns"] = time_one_recorded_scope(Path(name))
        results["host_us_in_window"] = measure_parts(timer, workload.models[0], scopes, Path(name))
        write_results(arguments.out, results)
        plain, scoped = measure_recorded(timer, scopes, Path(name), begun_s + 0.95 * left_s)
    results |= {
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
